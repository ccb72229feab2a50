"""What the server needs from an engine. ``EngineClient`` is the real one, ``FakeEngine`` the one for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

from strata.engine.messages import EngineReady, LoadProgress
from strata.experts.counts import ExpertStats
from strata.ngram.counts import TableCounts
from strata.request import GenerationRequest, TokenOutput
from strata.scheduler.stats import SchedulerStats

EngineState = Literal["loading", "ready", "failed", "closed"]


class Engine(Protocol):
    """Loads a model, then continues prompts. All methods are called from one asyncio event loop."""

    @property
    def state(self) -> EngineState:
        """Starts as "loading"; "failed" lasts until ``close()``."""

    @property
    def progress(self) -> LoadProgress | None:
        """How far the start has come; None before the first report."""

    @property
    def ready(self) -> EngineReady | None:
        """Facts about the model; None until it is loaded, kept from then on."""

    @property
    def stats(self) -> SchedulerStats | None:
        """The scheduler's state when it told last; None unless the engine is ready."""

    @property
    def experts(self) -> ExpertStats | None:
        """Where steps found their experts, up to a second ago; None unless the engine is ready, and for a model whose
        experts are always in one place or that has none."""

    @property
    def tables(self) -> TableCounts | None:
        """What steps read of tables of n-grams; None unless the engine is ready, before the first step, and for a model
        that has none."""

    @property
    def capacity(self) -> int:
        """Requests that may be in flight together, running or queued."""

    @property
    def failure(self) -> str | None:
        """Why the state is "failed"; None in every other state."""

    async def start(self) -> None:
        """Begin to load; returns at once. Called once."""

    async def wait_ready(self) -> EngineReady:
        """Wait for the end of loading.

        Raises UsageError when the model or the settings are at fault, EngineError when the engine fails, now or before,
        for another reason, or is closed.
        """

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        """Continue one prompt; the last output has a ``finish_reason``: STOP, LENGTH or TIMEOUT; ABORT after
        ``close()``; ERROR, with ``error``, where the model's logits are not finite.

        Nothing happens before the first iteration, which raises RequestError for a request that can never be served,
        OverloadedError when the queue is full, EngineError when the engine is not ready. Later ones raise EngineError
        when the engine fails, and RequestError for a grammar that meets a limit. Closing the iterator before its end
        aborts the request: use ``contextlib.aclosing``, since ``break`` alone closes it only when it is collected.
        """

    async def close(self) -> None:
        """End the engine now, in whatever state; open requests end with ``FinishReason.ABORT``. May be called again."""
