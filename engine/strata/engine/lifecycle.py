"""What every engine remembers of its life, and shows of it as ``Engine`` (see there) asks."""

from __future__ import annotations

from strata.engine.api import EngineState
from strata.engine.messages import EngineFailed, EngineReady, LoadProgress
from strata.errors import EngineError


class Lifecycle:
    """Base of the real engine's client and of the fake; they change the fields."""

    def __init__(self) -> None:
        self._state: EngineState = "loading"
        self._progress: LoadProgress | None = None
        self._ready: EngineReady | None = None
        self._failed: EngineFailed | None = None

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def progress(self) -> LoadProgress | None:
        return self._progress

    @property
    def ready(self) -> EngineReady | None:
        return self._ready

    @property
    def failure(self) -> str | None:
        return str(self._failed.error) if self._failed is not None else None

    def _raise_unless_ready(self) -> None:
        if self._state != "ready":
            raise EngineError(self.failure or f"the engine is {self._state}; requests are served while it is ready")
