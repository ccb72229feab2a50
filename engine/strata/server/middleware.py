"""Around every route: HEAD beside GET, a request's id, what is kept of it until its end, and faults of the server."""

from __future__ import annotations

import logging
import re
import traceback
import uuid
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata.server.failures import error_body
from strata.server.record import RequestRecord

logger = logging.getLogger(__name__)

HEADER = "x-request-id"
_SOUND_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

Observer = Callable[[RequestRecord], None]


class HeadAsGet:
    """Answers HEAD as GET, without the body: probes and proxies may ask so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


class KeepRecord:
    """Gives each request a ``RequestRecord`` as ``request.state.record``, and shows it to ``observers`` at the end.

    Echoes ``X-Request-Id``, or makes one where it is missing or could not stand in a header and a log line. An error
    that nobody foresaw is answered with its type alone, and logged without its message, which may quote the request.
    """

    def __init__(self, app: ASGIApp, observers: Sequence[Observer]) -> None:
        self._app = app
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        request_id = given if _SOUND_ID.fullmatch(given) else uuid.uuid4().hex
        client, _ = scope.get("client") or ("-", 0)
        record = RequestRecord(request_id, client, scope["method"], scope["path"], headers)
        scope.setdefault("state", {})["record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.answer(message["status"])
                message["headers"] = [*message.get("headers", ()), (HEADER.encode(), request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # noqa: BLE001  the last one to see it, and it is logged
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("request %s failed with %s:\n%s", request_id, type(error).__name__, frames)
            record.fail("internal_error")
            if record.status is None:
                message = f"the server failed: {type(error).__name__}; its log has the details"
                body = error_body(message, "server_error", code="internal_error")
                await JSONResponse(body, 500)(scope, receive, send_with_id)
        finally:
            record.close()
            for observe in self._observers:
                observe(record)
