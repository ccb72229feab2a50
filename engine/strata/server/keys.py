"""API keys: who may use the server. The file is read again when it changes; no key is kept or logged, only its hash."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from strata.errors import OptionError
from strata.server.failures import error_body
from strata.server.page.routes import PAGE_PATHS
from strata.server.record import record_of

logger = logging.getLogger(__name__)

SHOWN_DIGITS = 8  # of a key's hash: enough to tell keys apart, too few to find one
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})  # for probes and Prometheus, which have no key
_OPEN = OPEN_PATHS | PAGE_PATHS


class ApiKeys:
    """The keys of a file: one a line; empty lines, and lines that begin with #, say nothing.

    Raises OptionError when the file cannot be read or holds no key. When that happens later, a file that cannot be read
    leaves the keys as they were, since it may be on its way; one without a key lets nobody in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests: tuple[bytes, ...] = ()
        self._seen: tuple[int, ...] = ()
        try:
            self._read()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the API keys in {path} cannot be read: {error}; name a text file") from error
        if not self._digests:
            raise OptionError(f"{path} holds no API key; write one on each line, comments begin with #")

    def allow(self, key: str) -> bool:
        """Whether this is one of the keys. Takes as long whichever it is, and however much of it is right."""
        self._read_if_changed()
        digest = _digest(key)
        return any([hmac.compare_digest(digest, known) for known in self._digests])  # noqa: C419  looks at each of them

    def _read_if_changed(self) -> None:
        try:
            if self._stamp() != self._seen:
                self._read()
                logger.info("%s has changed: %d API keys from now on", self._path, len(self._digests))
        except (OSError, UnicodeDecodeError) as error:
            if self._seen:
                logger.error("%s cannot be read, the API keys stay as they are: %s", self._path, error)
            self._seen = ()

    def _stamp(self) -> tuple[int, ...]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> None:
        stamp = self._stamp()  # before the text: a change in between is seen at the next look
        if not self._path.is_file():  # a pipe would keep everybody waiting for its writer
            raise OSError("it is no regular file")
        lines = (line.strip() for line in self._path.read_text(encoding="utf-8").splitlines())
        keys = [line for line in lines if line and not line.startswith("#")]
        self._digests = tuple(map(_digest, keys))
        self._seen = stamp


class RequireKey:
    """Answers 401 unless a request has one of the keys, as ``Authorization: Bearer KEY``."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or refuse it."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                await _refusal("no API key is given; send the header 'Authorization: Bearer KEY'")(scope, receive, send)
                return
            if not self._keys.allow(key.strip()):
                await _refusal("the API key is none of those that this server takes")(scope, receive, send)
                return
            record_of(Request(scope)).identify(_digest(key.strip()).hex()[:SHOWN_DIGITS])
        await self._app(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _refusal(message: str) -> JSONResponse:
    body = error_body(message, "invalid_request_error", code="invalid_api_key")
    return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})
