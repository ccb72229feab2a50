"""An engine whose pretended VRAM holds two experts of a layer; for processes that a test starts."""

from __future__ import annotations

from unittest.mock import patch

from strata.config import EngineConfig
from strata.engine.loop import EngineLoop
from strata.engine.process import Report
from strata.plan import placement
from strata.runner import runner
from tests.engine import float32
from tests.experts.blob_kernels import CachedKernels

LOAD = "tests.experts.cached_engine:load"


def load(config: EngineConfig, report: Report) -> EngineLoop:
    """As ``strata.engine.load.load_engine``."""
    kernels = CachedKernels()
    with patch.object(placement, "MIN_SLOTS", 1), patch.object(runner, "kernels_for", lambda device, dtype: kernels):
        return float32.load(config, report)
