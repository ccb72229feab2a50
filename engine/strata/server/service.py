"""From a checked request to text: admit, tokenise, submit, count."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from strata.engine.api import Engine, EngineState
from strata.engine.messages import LoadProgress
from strata.errors import (
    EngineError,
    NotReadyError,
    OverloadedError,
    RequestError,
    StoppingError,
    StrataError,
    UnknownModelError,
)
from strata.plan.units import format_bytes
from strata.request import GenerationRequest
from strata.server.choice import generate_choice, merge
from strata.server.conversation import Opening
from strata.server.job import Job, Piece
from strata.server.metrics import Metrics
from strata.server.model import ServedModel, each_seeded, risks
from strata.server.record import RequestRecord
from strata.server.response_api.request import ResponseRequest
from strata.server.schemas import ChatRequest, CompletionRequest, GenerateRequest
from strata.server.tokens import DetokenizeRequest, TokenizeRequest

logger = logging.getLogger(__name__)

# Encoding a longer text takes milliseconds, during which no other answer could be streamed: a thread does it.
_LONG_TEXT = 8_000  # characters

AnyRequest = ChatRequest | CompletionRequest | GenerateRequest | ResponseRequest
_Result = TypeVar("_Result")


class Service:
    """Serves one engine's model under ``model_names``; the first is what a request without a name gets.

    tool_format, reasoning_format: a name of ``server.output.formats``, "auto" or "none".
    """

    def __init__(
        self,
        engine: Engine,
        *,
        model_names: tuple[str, ...],
        tool_format: str = "auto",
        reasoning_format: str = "auto",
    ) -> None:
        self.engine = engine
        self.model_names = model_names
        self.metrics = Metrics(engine, model_name=model_names[0])
        self.created = int(time.time())
        self._formats = {"tool_format": tool_format, "reasoning_format": reasoning_format}
        self._model: ServedModel | None = None
        self._error: StrataError | None = None
        self._loading: asyncio.Task[None] | None = None
        self._stopping = False
        self._num_open = 0  # choices that are being made
        self._idle = asyncio.Event()  # none is

    # --- life

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

    async def drain(self) -> None:
        """Take no more requests; returns when those that were taken have ended."""
        self._stopping = True
        if self._num_open:
            await self._idle.wait()

    @property
    def stopping(self) -> bool:
        """Whether new requests are refused, since the server ends."""
        return self._stopping

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

    async def admit(self, body: AnyRequest, record: RequestRecord) -> Job:
        """Tokenise and check against the model. Raises RequestError, NotReadyError, StoppingError, EngineError."""
        if isinstance(body, ResponseRequest):
            with body.own_words():
                return await self._admit(body.chat, record, "resp")
        return await self._admit(body, record, "chatcmpl" if isinstance(body, ChatRequest) else "cmpl")

    async def _admit(
        self, body: ChatRequest | CompletionRequest | GenerateRequest, record: RequestRecord, prefix: str
    ) -> Job:
        if self._stopping:
            raise StoppingError("the server is about to end and takes no more requests; try again, or elsewhere")
        name = record.model = self.check_name(body.model)
        model = self.model()
        opening = None
        if isinstance(body, ChatRequest):
            prompt, opening = await _open_chat(model, body)
            prompts = [prompt]
            param = "messages"
        else:
            given = body.prompts
            length = sum(map(len, given))
            prompts = await _maybe_in_thread(lambda: [model.encode_prompt(prompt) for prompt in given], length)
            param = "prompt"
        self._check_size(len(prompts), body.num_choices)
        job_id = f"{prefix}-{uuid.uuid4().hex}"
        params = [model.sampling(body, len(prompt), param=param) for prompt in prompts]
        if opening is not None and opening.grammar is not None:
            body.check_end(opening.grammar)
            params = [replace(sampling, grammar=opening.grammar) for sampling in params]
        requests = [
            GenerationRequest(
                f"{job_id}-{prompt * body.num_choices + choice}",
                prompts[prompt],
                sampling,
                priority=body.priority or 0,
                timeout_seconds=body.timeout,
            )
            for prompt in range(len(prompts))
            for choice, sampling in enumerate(each_seeded(params[prompt], body.num_choices))
        ]
        echo = []
        if body.wants_echo:
            texts = await _maybe_in_thread(lambda: [model.decode(prompt) for prompt in given], length)
            echo = [text for text in texts for _ in range(body.num_choices)]
        record.response_id, record.num_choices, record.sampling = job_id, body.num_choices, params[0]
        record.num_prompt_tokens = sum(map(len, prompts))
        return Job(
            job_id,
            tuple(requests),
            name,
            record,
            num_choices=body.num_choices,
            stop_strings=body.stop_strings,
            echo=tuple(echo),
            warnings=risks(params[0]),
            reading=None if opening is None else opening.reading,
        )

    async def generate(self, job: Job) -> AsyncGenerator[Piece, None]:
        """The answer as it grows, pieces of all choices in the order in which they come; a choice's last piece has a
        finish reason. Closing the iterator ends the generation.

        Raises before the first piece RequestError, OverloadedError or EngineError; later EngineError, or RequestError
        for a grammar that met a limit on the way.
        """
        model = self.model()
        num_held = 0  # places in the engine
        choices = [generate_choice(job, index, self.engine, model, self.metrics) for index in range(len(job.requests))]
        record = job.record
        record.outcome = "abort"  # what it is when the iterator is closed early
        num_open = len(choices)
        try:
            num_held = self._hold(num_open)
            record.submitted = time.monotonic()
            async with aclosing(merge(choices) if num_open > 1 else choices[0]) as pieces:
                async for piece in pieces:
                    if piece.finish_reason is not None:
                        record.finish_reasons[piece.choice] = piece.finish_reason.value
                        num_open -= 1
                        if num_open == 0:
                            record.outcome = piece.finish_reason.value
                        else:
                            num_held -= self._free(1)
                    yield piece
        except OverloadedError:
            record.outcome = "overloaded"
            raise
        except RequestError:
            record.outcome = "rejected"
            raise
        except StrataError:
            record.outcome = "error"
            raise
        finally:
            self._free(num_held)
            self.metrics.requests.labels(record.outcome).inc()
            if record.first_token is not None:
                self.metrics.request_duration.observe(time.monotonic() - record.arrived)

    def _check_size(self, num_prompts: int, num_choices: int) -> None:
        """Raises RequestError for more answers than could ever be made together."""
        num_answers, capacity = num_prompts * num_choices, self.engine.capacity
        if num_answers > capacity:
            raise RequestError(
                f"the request asks for {num_answers} answers; --max-num-seqs and --max-waiting of this server allow "
                f"{capacity} at a time; ask for fewer",
                param="prompt" if num_choices == 1 else "n",
            )

    def _hold(self, num_choices: int) -> int:
        """Take places for all choices of an answer, or raise OverloadedError: one that is refused would end the others,
        with what they had begun."""
        if self._num_open + num_choices > self.engine.capacity:
            raise OverloadedError(
                f"{self._num_open} requests are in flight, {self.engine.capacity} are allowed, and this one is "
                f"{num_choices}; try again later"
            )
        self._num_open += num_choices
        self._idle.clear()
        return num_choices

    def _free(self, num_choices: int) -> int:
        self._num_open -= num_choices
        if self._num_open == 0:
            self._idle.set()
        return num_choices

    async def tokenize(self, body: TokenizeRequest) -> dict[str, Any]:
        """The answer of ``/tokenize``. Raises RequestError, NotReadyError, EngineError."""
        self.check_name(body.model)
        model = self.model()
        if body.prompt is not None:
            text = body.prompt
            special = body.add_special_tokens
            ids = await _maybe_in_thread(lambda: model.tokenize(text, add_special_tokens=special), len(text))
        else:
            ids, _ = await _open_chat(model, body.chat)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = await _maybe_in_thread(lambda: _texts(model, ids), len(ids))
        return answer

    async def detokenize(self, body: DetokenizeRequest) -> dict[str, Any]:
        """The answer of ``/detokenize``. Raises RequestError, NotReadyError, EngineError."""
        self.check_name(body.model)
        model = self.model()
        return {"prompt": await _maybe_in_thread(lambda: model.spell(body.tokens), len(body.tokens))}

    def count_refusal(self, error: StrataError, record: RequestRecord) -> None:
        """Count a request that was not admitted."""
        if isinstance(error, NotReadyError | StoppingError):
            record.outcome = "unavailable"
        else:
            record.outcome = "rejected" if isinstance(error, RequestError) else "error"
        self.metrics.requests.labels(record.outcome).inc()

    def _describe_progress(self) -> str:
        progress = self.progress
        if progress is None:
            return "starting"
        return f"phase {progress.phase!r}, {format_bytes(progress.bytes_done)} of {format_bytes(progress.bytes_total)}"


async def _open_chat(model: ServedModel, chat: ChatRequest) -> tuple[tuple[int, ...], Opening]:
    return await asyncio.to_thread(model.open_chat, chat)  # it waits for the process that runs templates


def _texts(model: ServedModel, ids: Sequence[int]) -> list[str]:
    return [model.token_bytes(token_id).decode(errors="backslashreplace") for token_id in ids]


async def _maybe_in_thread(encode: Callable[[], _Result], length: int) -> _Result:
    return await asyncio.to_thread(encode) if length > _LONG_TEXT else encode()
