"""Pages of other origins: which of them a browser lets use the server (CORS), by the Fetch standard."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata.server.failures import error_body
from strata.server.middleware import HEADER

ANY_ORIGIN = "*"
_PREFLIGHT_SECONDS = 600  # that a browser remembers the answer
_EXPOSED = f"{HEADER}, retry-after"


class AllowOrigins:
    """Tells browsers that pages of ``origins`` may read the answers; refuses requests of other pages with 403.

    That they cannot read an answer is not enough: it would be generated all the same. Requests without an ``Origin``
    come from no page, and pass; so do those of pages that came from this server, which with ``is_local`` is called
    localhost or by an address. ``*`` allows every origin.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], is_local: bool) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, answer a browser's question, or refuse."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin is None or self._is_own(origin, headers.get("host", "").lower()):
            await self._app(scope, receive, send)
            return
        if self._origins.isdisjoint({origin, ANY_ORIGIN}):
            message = f"pages of {origin!r} may not use this server; --allowed-origins names those that may"
            body = error_body(message, "invalid_request_error", code="origin_not_allowed")
            await JSONResponse(body, 403, {"Vary": "Origin"})(scope, receive, send)
            return
        allowed = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            allowed |= {
                "Access-Control-Allow-Methods": "GET, POST",
                "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
                "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
            }
            await Response(status_code=204, headers=allowed)(scope, receive, send)
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**allowed, "Access-Control-Expose-Headers": _EXPOSED})
            await send(message)

        await self._app(scope, receive, send_allowed)

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page came from the host that it asks. The scheme may differ: a proxy may have taken TLS off."""
        return origin.partition("://")[2].lower() == host != "" and (not self._is_local or _cannot_be_rebound(host))


def _cannot_be_rebound(host: str) -> bool:
    """Whether no name server has a say in where this leads: localhost, or an address."""
    name = re.sub(r":\d*$", "", host)
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return True
