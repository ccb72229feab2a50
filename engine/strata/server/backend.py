"""The engine behind the server and the model that it loads: from loading to ready, and to failed or closed."""

from __future__ import annotations

import asyncio
import logging

from strata.engine.api import Engine, EngineState
from strata.engine.messages import LoadProgress
from strata.errors import EngineError, NotReadyError, StrataError
from strata.plan.units import format_bytes
from strata.server.model import ServedModel

logger = logging.getLogger(__name__)


class Backend:
    """tool_format, reasoning_format: a name of ``server.output.formats``, "auto" or "none"."""

    def __init__(self, engine: Engine, *, tool_format: str = "auto", reasoning_format: str = "auto") -> None:
        self.engine = engine
        self._formats = {"tool_format": tool_format, "reasoning_format": reasoning_format}
        self._model: ServedModel | None = None
        self._error: StrataError | None = None
        self._loading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to load; returns at once. What goes wrong, now or later, is in ``error``."""
        self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        try:
            await self.engine.start()
            ready = await self.engine.wait_ready()
            self._model = await asyncio.to_thread(ServedModel, ready, **self._formats)
        except StrataError as error:
            if self.engine.state != "closed":  # an end that was asked for is no failure
                self._error = error
        except Exception as error:
            logger.exception("loading failed")
            self._error = EngineError(f"loading failed: {type(error).__name__}: {error}")

    async def close(self) -> None:
        """End the engine and what waits for it."""
        self._error = self.error  # which an engine that is closed no longer tells
        await self.engine.close()
        if self._loading is not None:
            await self._loading

    @property
    def state(self) -> EngineState:
        """The engine's state, and "loading" until the tokenizer is there as well."""
        if self.engine.state == "closed":
            return "closed"
        if self.error is not None:
            return "failed"
        return "ready" if self._model is not None else "loading"

    @property
    def error(self) -> StrataError | None:
        """What ended the service, at its start or later; UsageError when the user must change something."""
        has_loaded = self._loading is not None and self._loading.done()
        if self._error is None and self.engine.state == "failed" and has_loaded:
            return EngineError(self.engine.failure or "the engine failed")
        return self._error

    def model(self) -> ServedModel:
        """The loaded model. Raises NotReadyError while there is none, EngineError when there never will be."""
        if self.state == "loading":
            so_far = _so_far(self.engine.progress)
            raise NotReadyError(f"the model is still loading ({so_far}); try again later")
        if self.state != "ready" or self._model is None:
            raise EngineError(f"the engine is {self.state}" + (f": {self.error}" if self.error else ""))
        return self._model


def _so_far(progress: LoadProgress | None) -> str:
    if progress is None:
        return "starting"
    return f"phase {progress.phase!r}, {format_bytes(progress.bytes_done)} of {format_bytes(progress.bytes_total)}"
