"""From a checked request to text: admit, tokenise, submit, detokenise, count."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from strata.engine.api import Engine, EngineState
from strata.engine.messages import LoadProgress
from strata.errors import EngineError, NotReadyError, OverloadedError, RequestError, StrataError, UnknownModelError
from strata.request import FinishReason, GenerationRequest
from strata.server.metrics import Metrics
from strata.server.model import ServedModel
from strata.server.schemas import ChatRequest, CompletionRequest, GenerateRequest
from strata.server.stop import StopStrings

logger = logging.getLogger(__name__)

# Encoding a longer text takes milliseconds, during which no other answer could be streamed: a thread does it.
_LONG_TEXT = 8_000  # characters

# Outputs that wait already are taken without a pause; after so many, other requests have their turn.
_TURN = 32


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted request."""

    request: GenerationRequest
    model_name: str  # as the request called it
    stop_strings: tuple[str, ...]
    arrived: float  # seconds of time.perf_counter()


class Piece(NamedTuple):
    """New text of an answer."""

    text: str
    num_tokens: int  # generated so far
    finish_reason: FinishReason | None


class Service:
    """Serves one engine's model under ``model_names``; the first is what a request without a name gets."""

    def __init__(self, engine: Engine, *, model_names: tuple[str, ...]) -> None:
        self.engine = engine
        self.model_names = model_names
        self.metrics = Metrics(engine, model_name=model_names[0])
        self.created = int(time.time())
        self._model: ServedModel | None = None
        self._error: StrataError | None = None
        self._loading: asyncio.Task[None] | None = None

    # --- life

    async def start(self) -> None:
        """Begin to load; returns at once. What goes wrong, now or later, is in ``error``."""
        self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        try:
            await self.engine.start()
            ready = await self.engine.wait_ready()
            self._model = await asyncio.to_thread(ServedModel, ready)
        except StrataError as error:
            if self.engine.state != "closed":  # an end that was asked for is no failure
                self._error = error
        except Exception as error:
            logger.exception("loading failed")
            self._error = EngineError(f"loading failed: {type(error).__name__}: {error}")

    async def close(self) -> None:
        """End the engine and what waits for it."""
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

    @property
    def progress(self) -> LoadProgress | None:
        """How far the engine has come."""
        return self.engine.progress

    # --- requests

    def model(self) -> ServedModel:
        """The loaded model. Raises NotReadyError while there is none, EngineError when there never will be."""
        if self.state == "loading":
            raise NotReadyError(f"the model is still loading ({self._describe_progress()}); try again later")
        if self.state != "ready" or self._model is None:
            raise EngineError(f"the engine is {self.state}" + (f": {self.error}" if self.error else ""))
        return self._model

    def check_name(self, name: str | None) -> str:
        """The name under which to answer. Raises UnknownModelError with the names that are served."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            served = ", ".join(repr(served) for served in self.model_names)
            message = f"the model {name!r} is not served here; served: {served}"
            raise UnknownModelError(message, param="model", code="model_not_found")
        return name

    async def admit(self, body: ChatRequest | CompletionRequest | GenerateRequest, arrived: float) -> Job:
        """Tokenise and check against the model. Raises RequestError, NotReadyError, EngineError."""
        name = self.check_name(body.model)
        model = self.model()
        if isinstance(body, ChatRequest):
            messages = body.messages
            length = sum(len(message.text) for message in messages)
            prompt = await _maybe_in_thread(lambda: model.encode_chat(messages), length)
            param, prefix = "messages", "chatcmpl"
        else:
            text = body.prompt
            prompt = await _maybe_in_thread(lambda: model.encode_prompt(text), len(text))
            param, prefix = "prompt", "cmpl"
        request = GenerationRequest(
            f"{prefix}-{uuid.uuid4().hex}", prompt, model.sampling(body, len(prompt), param=param)
        )
        return Job(request, name, body.stop_strings, arrived)

    async def generate(self, job: Job) -> AsyncGenerator[Piece, None]:
        """The answer as it grows; the last piece has a finish reason. Closing the iterator ends the generation.

        Raises before the first piece RequestError, OverloadedError or EngineError; later EngineError alone.
        """
        metrics = self.metrics
        observe_latency = metrics.inter_token_latency.observe
        detokenizer = self.model().detokenizer()
        stops = StopStrings(job.stop_strings) if job.stop_strings else None
        num_tokens = 0
        previous = 0.0
        outcome = "abort"  # what it is when the iterator is closed early
        try:
            async with aclosing(self.engine.generate(job.request)) as outputs:
                async for output in outputs:
                    ids, reason = output.token_ids, output.finish_reason
                    if reason is FinishReason.ABORT or reason is FinishReason.ERROR:
                        raise EngineError(output.error or "the engine was closed before the answer was complete")
                    if ids:
                        now = time.perf_counter()
                        if num_tokens == 0:
                            metrics.prompt_tokens.inc(len(job.request.prompt_token_ids))
                            metrics.time_to_first_token.observe(now - job.arrived)
                        else:
                            for _ in ids:
                                observe_latency((now - previous) / len(ids))
                        previous = now
                        num_tokens += len(ids)
                        if num_tokens % _TURN == 0:
                            await asyncio.sleep(0)
                    if reason is FinishReason.STOP:
                        ids = ids[:-1]  # the token that stops is no part of the text
                    text = detokenizer.feed(ids)
                    if reason is not None:
                        text += detokenizer.flush()
                    if stops is not None:
                        text, met = stops.feed(text)
                        if met:
                            reason = FinishReason.STOP
                        elif reason is not None:
                            text += stops.flush()
                    if reason is not None:
                        outcome = reason.value
                        yield Piece(text, num_tokens, reason)
                        return
                    if text:
                        yield Piece(text, num_tokens, None)
            raise EngineError("the engine ended the answer without a reason")
        except OverloadedError:
            outcome = "overloaded"
            raise
        except RequestError:
            outcome = "rejected"
            raise
        except StrataError:
            outcome = "error"
            raise
        finally:
            metrics.generation_tokens.inc(num_tokens)
            metrics.requests.labels(outcome).inc()
            if num_tokens:
                metrics.request_duration.observe(time.perf_counter() - job.arrived)

    def count_refusal(self, error: StrataError) -> None:
        """Count a request that was not admitted."""
        if isinstance(error, NotReadyError):
            outcome = "unavailable"
        else:
            outcome = "rejected" if isinstance(error, RequestError) else "error"
        self.metrics.requests.labels(outcome).inc()

    def _describe_progress(self) -> str:
        progress = self.progress
        if progress is None:
            return "starting"
        return f"phase {progress.phase!r}, {progress.bytes_done} of {progress.bytes_total} bytes"


async def _maybe_in_thread(encode: Callable[[], tuple[int, ...]], length: int) -> tuple[int, ...]:
    return await asyncio.to_thread(encode) if length > _LONG_TEXT else encode()
