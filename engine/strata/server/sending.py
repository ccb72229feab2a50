"""Sending an answer, streamed or in one piece, and ending the generation as soon as nobody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strata.errors import RequestError, StrataError
from strata.server.envelope import Envelope
from strata.server.failures import describe
from strata.server.job import Job, Piece
from strata.server.service import Service

logger = logging.getLogger(__name__)

# A stream's headers wait this long for the first token, so that a failure before it gets a status of its own; then they
# go out, since proxies and clients give up on a server that says nothing.
_HEADER_WAIT_SECONDS = 1.0


class JobResponse(Response):
    """An ASGI response that runs one job. Subclasses say how it is sent."""

    def __init__(self, service: Service, job: Job, envelope: Envelope) -> None:
        super().__init__()
        self._service = service
        self._job = job
        self._envelope = envelope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises StrataError as long as nothing has been sent."""
        answer = asyncio.ensure_future(self._send(send))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        finally:
            await _cancel(answer, disconnect)

    def _send(self, send: Send) -> Coroutine[Any, Any, None]:
        raise NotImplementedError


class WholeAnswer(JobResponse):
    """One JSON body when the answer is complete."""

    async def _send(self, send: Send) -> None:
        async with aclosing(self._service.generate(self._job)) as pieces:
            async for piece in pieces:
                self._envelope.add(piece)
        body = self._envelope.whole()
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class StreamedAnswer(JobResponse):
    """Server-sent events, a chunk for every piece of text."""

    async def _send(self, send: Send) -> None:
        envelope = self._envelope
        async with aclosing(self._service.generate(self._job)) as pieces:
            first = asyncio.ensure_future(_first(pieces))
            try:
                await asyncio.wait({first}, timeout=_HEADER_WAIT_SECONDS)
                if first.done():
                    first.result()  # a failure now is still an ordinary error response
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                headers.append((b"x-accel-buffering", b"no"))  # or nginx collects the chunks
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await _body(send, envelope.opening())
                try:
                    await _body(send, envelope.chunk(await first))
                    async for piece in pieces:
                        await _body(send, envelope.chunk(piece))
                    await _body(send, envelope.closing(), more=False)
                except StrataError as error:
                    failure = describe(error)[1]
                    record = self._job.record
                    record.fail(failure["error"]["code"])
                    # A request's own faults quote it: they are for the client, not for the log.
                    why = record.error if isinstance(error, RequestError) else error
                    logger.error("request %s ends in mid-stream: %s", record.request_id, why)
                    await _body(send, envelope.failure(failure), more=False)
            finally:
                await _cancel(first)


async def _first(pieces: AsyncGenerator[Piece, None]) -> Piece:
    return await anext(pieces)


async def _body(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait for its end, so that nothing outlives its request."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
