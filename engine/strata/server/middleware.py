"""Around every route: HEAD beside GET, and a request's id with its line in the access log; never its body or query."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("strata.access")

HEADER = "x-request-id"
_QUIET = frozenset({"/health", "/ready", "/metrics", "/v1/status"})  # asked every few seconds; logged at level "debug"
_MAX_PATH = 200  # characters of a path that are logged
_SOUND_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


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


class AccessLog:
    """Echoes ``X-Request-Id``, or makes one where it is missing or could not stand in a header and a log line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _SOUND_ID.fullmatch(given) else uuid.uuid4().hex
        started = time.perf_counter()
        status = "-"  # the client left before the headers

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                message["headers"] = [*message.get("headers", ()), (HEADER.encode(), request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
            seconds = time.perf_counter() - started
            client = scope.get("client") or ("-", 0)
            logger.log(
                level,
                "%s %s %r %s %.3f s id=%s",
                client[0],
                scope["method"],
                scope["path"][:_MAX_PATH],
                status,
                seconds,
                request_id,
            )
