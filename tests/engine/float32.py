"""The engine with float32 activations, for tests that compare tokens.

In bfloat16 the order of a sum, which depends on what else is in the batch, moves logits by about a hundredth, enough to
change a token now and then. In float32 it does not.
"""

from __future__ import annotations

import torch

from strata.config import EngineConfig
from strata.engine.loop import EngineLoop
from strata.engine.process import Report
from strata.runner.runner import Runner
from strata.store.locate import resolve
from strata.store.reader import Store

LOAD = "tests.engine.float32:load"


def load(config: EngineConfig, report: Report = lambda progress: None) -> EngineLoop:
    """As ``strata.engine.load.load_engine``."""
    store = Store.open(resolve(config.model, config.dtype))
    return EngineLoop(store, Runner.load(store, config, compute_dtype=torch.float32), config)
