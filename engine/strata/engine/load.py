"""From the user's settings to an engine that steps."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from strata.config import EngineConfig
from strata.engine.messages import LoadProgress
from strata.engine.process import Report
from strata.store.locate import check_source, resolve
from strata.store.reader import Store

if TYPE_CHECKING:
    from strata.engine.loop import EngineLoop

logger = logging.getLogger(__name__)


def load_engine(config: EngineConfig, report: Report = lambda progress: None) -> EngineLoop:
    """Fetch the model and convert it if need be (phases "download", "convert", "verify"; "wait" where another process
    does), load it (phases "load", "prepare", "capture" and "warm up"), and put the loop around it.

    Raises UsageError when the model, the device or the settings are at fault.
    """
    began = time.monotonic()

    def progress(phase: str, done: int, total: int) -> None:
        report(LoadProgress(phase, done, total))

    check_source(config.model)
    if config.device.device == "cuda":  # before gigabytes are fetched and converted for nothing
        from strata.runner.device import check_device

        check_device(config.device)
    path = resolve(config.model, config.dtype, progress=progress)
    store = Store.open(path)
    if store.dtype != config.dtype:
        logger.info(
            "%s holds %s weights, which are used as they are; dtype %s is for conversions",
            path,
            store.dtype,
            config.dtype,
        )

    # Not before the model has been found: importing torch takes seconds, and a mistyped path should not.
    from strata.engine.loop import EngineLoop
    from strata.runner.runner import Runner

    runner = Runner.load(store, config, progress)
    logger.info("loaded %s in %.1f s", path, time.monotonic() - began)
    return EngineLoop(store, runner, config)
