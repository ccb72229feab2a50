"""One choice of an answer: from the engine's tokens to text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from strata.engine.api import Engine
from strata.errors import EngineError
from strata.request import FinishReason, TokenOutput
from strata.server.job import Job, Piece
from strata.server.logprobs import ScoredText
from strata.server.metrics import Metrics, Pace
from strata.server.model import ServedModel
from strata.server.output.deltas import Delta
from strata.server.reading import Reader
from strata.server.stop import StopStrings

# Outputs that wait already are taken without a pause; after so many, other requests have their turn.
_TURN = 32


class _Text:
    """What the tokens of one choice say, as far as it is certain."""

    def __init__(self, job: Job, index: int, model: ServedModel) -> None:
        self._index = index
        self._num_tokens = 0
        self._detokenizer = model.detokenizer(job.reading.marks if job.reading is not None else ())
        self._scored = ScoredText(self._detokenizer, model.token_bytes) if job.wants_logprobs else None
        self._stops = StopStrings(job.stop_strings)
        self._reader = Reader(job.reading) if job.reading is not None else None

    def feed(self, output: TokenOutput) -> Piece | None:
        """Take in new tokens; gives the next piece, None when nothing shows yet."""
        ids, reason = output.token_ids, output.finish_reason
        self._num_tokens += len(ids)
        if reason is FinishReason.STOP:
            ids = ids[:-1]  # the token that stops is no part of the text
        text = self._detokenizer.feed(ids) if self._scored is None else self._scored.feed(ids, output.logprobs)
        if reason is not None:
            text += self._detokenizer.flush()
        text, met = self._stops.feed(text, is_last=reason is not None)
        tokens = () if self._scored is None else self._scored.shown(text, is_all=reason is not None and not met)
        if met:
            reason = FinishReason.STOP
        deltas: tuple[Delta, ...] = ()
        if self._reader is not None:
            deltas, text = self._reader.feed(text, is_last=reason is not None), ""
            if self._reader.is_over:
                reason = FinishReason.STOP
        if reason is None and not (text or deltas or tokens):
            return None
        return Piece(self._index, text, reason, self._num_tokens, output.num_cached_tokens, tokens, deltas)


async def generate_choice(
    job: Job, index: int, engine: Engine, model: ServedModel, metrics: Metrics
) -> AsyncGenerator[Piece, None]:
    """What one choice says as it grows; the last piece has a finish reason. Closing the iterator ends its generation.

    Raises before the first piece RequestError, OverloadedError or EngineError; later EngineError, or RequestError for a
    grammar that met a limit on the way.
    """
    request, text = job.requests[index], _Text(job, index, model)
    pace = Pace(metrics, job.record, len(request.prompt_token_ids) if job.is_first_of_prompt(index) else None)
    num_outputs = 0
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                raise EngineError(output.error or "the engine was closed before the answer was complete")
            if output.token_ids:
                pace.count(output)
                num_outputs += 1
                if num_outputs % _TURN == 0:
                    await asyncio.sleep(0)
            piece = text.feed(output)
            if piece is not None:
                yield piece
                if piece.finish_reason is not None:
                    return
    raise EngineError("the engine ended the answer without a reason")


async def merge(choices: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """The pieces of several choices in the order in which they come. The first error ends all, and is raised; so does
    closing the iterator."""
    arrived: asyncio.Queue[Piece | asyncio.Task[None]] = asyncio.Queue()

    async def drain(choice: AsyncGenerator[Piece, None]) -> None:
        async with aclosing(choice) as pieces:
            async for piece in pieces:
                arrived.put_nowait(piece)

    tasks = [asyncio.create_task(drain(choice)) for choice in choices]
    for task in tasks:
        task.add_done_callback(arrived.put_nowait)
    num_open = len(tasks)
    try:
        while num_open:
            item = await arrived.get()
            if isinstance(item, asyncio.Task):
                item.result()
                num_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
