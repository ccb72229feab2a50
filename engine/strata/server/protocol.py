"""uvicorn's HTTP/1.1 with five bounds: the number of connections, the size of a request's head, that of what stands
between the parts of its body, the time that it may take to arrive, and the time that its answer may stay unread."""

from __future__ import annotations

import asyncio
import json
import re
import resource
from http import HTTPStatus
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from strata.server.access_log import log_refusal
from strata.server.failures import error_body

MAX_CONNECTIONS = 4096
_OTHER_FILES = 128  # that the process has open beside them
MAX_HEAD_BYTES = 64 << 10  # of request line and headers; 8 to 64 KiB are usual in servers and proxies
# Of sizes, extensions and trailers of a body in chunks: one of single bytes has five for each.
MAX_FRAMING_BYTES = 2 * MAX_HEAD_BYTES
FRAMING_PER_BYTE = 16
ARRIVAL_SECONDS = 60.0  # from a request's first byte to the last of its body
UNREAD_SECONDS = 60.0  # that the buffers between server and client may stay full


def allow_connections() -> int:
    """How many there may be at a time; raises the process's own limit of open files as far as it needs and may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft - _OTHER_FILES))


_METHODS = (b"GET", b"HEAD", b"POST", b"OPTIONS")
_REQUEST_LINE = re.compile(rb"([A-Za-z-]{1,32}) \S+ HTTP/1\.[01]\r?\n")


class BoundedProtocol(HttpToolsProtocol):
    """One connection. What is no HTTP request, too large or too slow gets OpenAI's error object, and is closed."""

    max_connections = MAX_CONNECTIONS  # of one server; ``allow_connections`` tells how many the process can have

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arriving: Literal["nothing", "head", "body"] = "nothing"
        self._head_bytes = 0
        self._fields_bytes = 0  # of it, as far as it is read
        self._body_bytes = 0
        self._framing_bytes = 0
        self._newest = b""  # what the parser reads now, or read last
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            message = f"{self.max_connections} connections are open, the most that are held; try again later"
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, message, "too_many_connections")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._read_on()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._newest = data
        already = self._body_bytes
        super().data_received(data)
        if self._arriving == "head":
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head(f"the request line and headers are longer than {MAX_HEAD_BYTES} bytes")
        elif self._arriving == "body":
            self._framing_bytes += len(data) - (self._body_bytes - already)
            allowed = MAX_FRAMING_BYTES + FRAMING_PER_BYTE * self._body_bytes
            if self._framing_bytes > allowed:
                self._refuse_head(f"the chunks of the body have more than {allowed} bytes beside it")

    def send_400_response(self, msg: str) -> None:
        if self._fields_bytes > MAX_HEAD_BYTES:
            self._refuse_head(f"the request line and headers are longer than {MAX_HEAD_BYTES} bytes")
            return
        request_line = _REQUEST_LINE.match(self._newest)
        if request_line is not None and request_line[1] not in _METHODS:
            message = (
                f"the method {request_line[1].decode()!r} is not known here; GET, HEAD, POST and OPTIONS are taken"
            )
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, message, "method_not_allowed")
            return
        message = "these bytes are no HTTP/1.1 request; plain HTTP is spoken here, use http:// and not https://"
        self._refuse(HTTPStatus.BAD_REQUEST, message, "invalid_http")

    def _unsupported_upgrade_warning(self) -> None:
        """Who asks for WebSockets is answered as if nobody had: there are none here, whatever is installed."""

    # --- the parser's steps

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arriving = "head"
        self._head_bytes = self._fields_bytes = self._body_bytes = self._framing_bytes = 0
        self._wait()

    def on_url(self, url: bytes) -> None:
        self._count_field(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_field(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def _count_field(self, num_bytes: int) -> None:
        self._fields_bytes += num_bytes
        if self._fields_bytes > MAX_HEAD_BYTES:  # all of it may come in one piece
            raise ValueError("the head is too large")  # the parser ends, and asks for ``send_400_response``

    def on_headers_complete(self) -> None:
        self._arriving = "body"
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._arriving = "nothing"
        self._arrived()
        super().on_message_complete()

    # --- the flow of the answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_on()
        # Who reads no more, and keeps the connection, would keep the place of a request as well.
        self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._read_on()
        super().resume_writing()

    def _read_on(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    # --- the end of patience

    def _wait(self) -> None:
        self._arrived()
        self._deadline = self.loop.call_later(ARRIVAL_SECONDS, self._on_deadline)

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        if self.pipeline:  # reading is paused until the request before has its answer
            self._wait()
            return
        message = f"the request did not arrive within {ARRIVAL_SECONDS:.0f} s; send it again"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "request_timeout")

    def _refuse_head(self, why: str) -> None:
        if not self.transport.is_closing():
            message = f"{why}, the most that is read"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, "headers_too_large")

    def _refuse(self, status: HTTPStatus, message: str, code: str) -> None:
        """Answer where no answer has begun, and close the connection."""
        log_refusal(self.client[0] if self.client else "-", status, code)
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (self._arriving == "body" and not cycle.response_started):
            body = json.dumps(error_body(message, "invalid_request_error", code=code)).encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
