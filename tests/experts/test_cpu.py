"""Experts in host memory: what is said where there is too little of it, and where the card had no answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strata.errors import EngineError, HardwareError
from strata.experts import cpu
from strata.experts.cpu import CpuExperts
from strata.kernels.matrix import SILU
from strata.memory import host
from strata.plan.memory import HEADROOM_BYTES
from tests.experts.test_resident import made_store


def experts(directory: Path) -> CpuExperts:
    layout = made_store(directory, "int4").manifest.contents.experts
    assert layout is not None
    return CpuExperts(
        layout,
        torch.device("cpu"),
        top_k=2,
        max_tokens=16,
        depth=8,
        routing_threads=1,
        num_slots=2,
        num_scores=layout.num_experts,
    )


def test_host_memory_for_less_than_the_slots_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More would be on disk, but what slots hold in turn comes from memory that the card reads."""
    for module in (cpu, host):
        monkeypatch.setattr(module, "available_memory", lambda *_: HEADROOM_BYTES + 1000)
    with pytest.raises(
        HardwareError, match=r"KiB of host memory are needed for experts; .* leave 1000 B\. Raise the container's"
    ):
        experts(tmp_path)


def test_an_answer_that_the_card_did_not_get_in_time_ends_the_step(tmp_path: Path) -> None:
    made = experts(tmp_path)
    made.open(SILU, normalize=True, num_resident=0)
    try:
        made.check()
        made._late.fill_(1)  # as the card's kernels do
        with pytest.raises(EngineError, match="had no answer of the CPU's experts in time; restart the engine"):
            made.check()
    finally:
        made.close()
