"""One choice of an answer: from the engine's tokens to text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from strata.engine.api import Engine
from strata.errors import EngineError
from strata.request import FinishReason
from strata.server.job import Job, Piece
from strata.server.logprobs import ScoredText
from strata.server.metrics import Metrics, Pace
from strata.server.model import ServedModel
from strata.server.output.deltas import Delta
from strata.server.reading import Reader
from strata.server.stop import StopStrings

# Outputs that wait already are taken without a pause; after so many, other requests have their turn.
_TURN = 32


async def generate_choice(
    job: Job, index: int, engine: Engine, model: ServedModel, metrics: Metrics
) -> AsyncGenerator[Piece, None]:
    """The text of one choice as it grows; the last piece has a finish reason. Closing the iterator ends its generation.

    Raises before the first piece RequestError, OverloadedError or EngineError; later EngineError alone.
    """
    request = job.requests[index]
    reader = Reader(job.reading) if job.reading is not None else None
    detokenizer = model.detokenizer(job.reading.marks if job.reading is not None else ())
    scored = ScoredText(detokenizer, model.token_bytes) if request.sampling.logprobs is not None else None
    stops = StopStrings(job.stop_strings)
    pace = Pace(metrics, job.arrived, len(request.prompt_token_ids) if job.is_first_of_prompt(index) else None)
    num_tokens = 0
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            ids, reason = output.token_ids, output.finish_reason
            if reason is FinishReason.ABORT or reason is FinishReason.ERROR:
                raise EngineError(output.error or "the engine was closed before the answer was complete")
            if ids:
                pace.count(len(ids))
                num_tokens += len(ids)
                if num_tokens % _TURN == 0:
                    await asyncio.sleep(0)
            if reason is FinishReason.STOP:
                ids = ids[:-1]  # the token that stops is no part of the text
            text = detokenizer.feed(ids) if scored is None else scored.feed(ids, output.logprobs)
            if reason is not None:
                text += detokenizer.flush()
            text, met = stops.feed(text, is_last=reason is not None)
            tokens = () if scored is None else scored.shown(text, is_all=reason is not None and not met)
            if met:
                reason = FinishReason.STOP
            deltas: tuple[Delta, ...] = ()
            if reader is not None:
                deltas, text = reader.feed(text, is_last=reason is not None), ""
                if reader.is_over:
                    reason = FinishReason.STOP
            if reason is not None or text or deltas or tokens:
                yield Piece(index, text, reason, num_tokens, output.num_cached_tokens, tokens, deltas)
            if reason is not None:
                return
    raise EngineError("the engine ended the answer without a reason")


async def merge(choices: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """The pieces of several choices in the order in which they come. The first error ends all, and is raised."""
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
