"""One model for many requests: admit, generate, count."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from strata.engine.api import Engine
from strata.errors import (
    NotReadyError,
    OverloadedError,
    RequestError,
    StoppingError,
    StrataError,
    UnknownModelError,
)
from strata.server import encoding
from strata.server.admission import AnyRequest, admit
from strata.server.backend import Backend
from strata.server.choice import generate_choice, merge
from strata.server.job import Job, Piece
from strata.server.metrics import Metrics
from strata.server.places import Places
from strata.server.record import RequestRecord
from strata.server.tokens import DetokenizeRequest, TokenizeRequest


class Service:
    """Serves one engine's model under ``model_names``; the first is what a request without a name gets.

    tool_format, reasoning_format: see ``Backend``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        model_names: tuple[str, ...],
        tool_format: str = "auto",
        reasoning_format: str = "auto",
    ) -> None:
        self.backend = Backend(engine, tool_format=tool_format, reasoning_format=reasoning_format)
        self.model_names = model_names
        self.metrics = Metrics(engine, model_name=model_names[0])
        self.created = int(time.time())
        self._places = Places(engine.capacity)
        self._stopping = False

    async def drain(self) -> None:
        """Take no more requests; returns when those that were taken have ended."""
        self._stopping = True
        await self._places.wait_idle()

    @property
    def stopping(self) -> bool:
        """Whether new requests are refused, since the server ends."""
        return self._stopping

    def check_name(self, name: str | None) -> str:
        """The name under which to answer. Raises UnknownModelError with the names that are served."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            served = ", ".join(repr(served) for served in self.model_names)
            message = f"the model {name!r} is not served here; served: {served}"
            raise UnknownModelError(message, param="model", code="model_not_found")
        return name

    async def admit(self, body: AnyRequest, record: RequestRecord) -> Job:
        """Tokenise and check against the model. Raises RequestError, NotReadyError, StoppingError, EngineError."""
        if self._stopping:
            raise StoppingError("the server is about to end and takes no more requests; try again, or elsewhere")
        name = self.check_name(body.model)
        record.address(name)
        return await admit(body, record, name, self.backend.model(), self._places)

    async def generate(self, job: Job) -> AsyncGenerator[Piece, None]:
        """The answer as it grows, pieces of all choices in the order in which they come; a choice's last piece has a
        finish reason. Closing the iterator ends the generation.

        Raises before the first piece RequestError, OverloadedError or EngineError; later EngineError, or RequestError
        for a grammar that met a limit on the way.
        """
        model, engine = self.backend.model(), self.backend.engine
        choices = [generate_choice(job, index, engine, model, self.metrics) for index in range(len(job.requests))]
        record, num_open, num_held = job.record, len(choices), 0
        outcome = "abort"  # if the iterator is closed early
        try:
            num_held = self._places.take(num_open)
            record.submit()
            async with aclosing(merge(choices) if num_open > 1 else choices[0]) as pieces:
                async for piece in pieces:
                    if piece.finish_reason is not None:
                        record.finish(piece.choice, piece.finish_reason)
                        num_open -= 1
                        if num_open == 0:
                            outcome = piece.finish_reason.value
                        else:
                            num_held -= self._places.free(1)
                    yield piece
        except StrataError as error:
            outcome = _outcome(error)
            raise
        finally:
            self._places.free(num_held)
            self._count(record, outcome)
            if record.first_token is not None:
                self.metrics.request_duration.observe(time.monotonic() - record.arrived)

    async def tokenize(self, body: TokenizeRequest) -> dict[str, Any]:
        """The answer of ``/tokenize``. Raises RequestError, NotReadyError, EngineError."""
        self.check_name(body.model)
        return await encoding.tokenize(self.backend.model(), body)

    async def detokenize(self, body: DetokenizeRequest) -> dict[str, Any]:
        """The answer of ``/detokenize``. Raises RequestError, NotReadyError, EngineError."""
        self.check_name(body.model)
        return await encoding.detokenize(self.backend.model(), body)

    def refuse(self, error: StrataError, record: RequestRecord) -> None:
        """Count a request that was not admitted."""
        self._count(record, _outcome(error))

    def _count(self, record: RequestRecord, outcome: str) -> None:
        record.end(outcome)
        self.metrics.requests.labels(outcome).inc()


def _outcome(error: StrataError) -> str:
    """How an answer ended that an error ended."""
    if isinstance(error, NotReadyError | StoppingError):
        return "unavailable"
    if isinstance(error, OverloadedError):
        return "overloaded"
    return "rejected" if isinstance(error, RequestError) else "error"
