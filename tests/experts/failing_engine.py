"""Engines that fail at their third step, each in its own way; for processes that a test starts.

Without a card, ``cached_engine`` takes its place.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from strata.config import EngineConfig
from strata.engine.load import load_engine
from strata.engine.loop import EngineLoop
from strata.engine.messages import StepOutputs
from strata.engine.process import Report
from strata.experts import cpu
from strata.experts.hybrid import Hybrid
from strata.native.pool import PoolOptions
from tests.experts import cached_engine

GOOD_STEPS = 2
TIMEOUT_SECONDS = 3  # of a job of the CPU's threads
_TGKILL, _SIGUSR1 = 234, 10
_NOWHERE = 64  # an address that no process has


def worker_hangs(config: EngineConfig, report: Report) -> EngineLoop:
    """The CPU's threads stop where they are, as in a kernel that never ends."""

    def hang(tier: Hybrid) -> None:
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal(_SIGUSR1, ctypes.cast(libc.pause, ctypes.c_void_p))
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().startswith("strata-cpu"):
                libc.syscall(_TGKILL, os.getpid(), int(task.name), _SIGUSR1)

    return _load(config, report, hang)


def worker_crashes(config: EngineConfig, report: Report) -> EngineLoop:
    """The CPU's threads read where no memory is."""
    return _load(config, report, lambda tier: tier.cpu._table.fill_(_NOWHERE))


def card_fails(config: EngineConfig, report: Report) -> EngineLoop:
    """The card's kernels read where no memory is."""
    return _load(config, report, lambda tier: tier.slots.registry.table.fill_(_NOWHERE))


def _load(config: EngineConfig, report: Report, fail: Callable[[Hybrid], object]) -> EngineLoop:
    with patch.object(cpu, "PoolOptions", partial(PoolOptions, timeout_seconds=TIMEOUT_SECONDS)):
        loop = (load_engine if config.device.device == "cuda" else cached_engine.load)(config, report)
    tier = loop._runner.model.tier
    assert isinstance(tier, Hybrid)
    steps, step = iter(range(100)), loop.step

    def failing_step() -> StepOutputs:
        if next(steps) == GOOD_STEPS:
            with torch.inference_mode():
                fail(tier)
        return step()

    loop.step = failing_step  # type: ignore[method-assign]
    return loop
