"""An API server that says what a test tells it to, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import Configuration

from strata_operator.cluster.client import Client


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """``lines`` are sent one by one as a chunked stream; after ``broken`` the connection is cut instead of ended."""

    status: int = 200
    body: Any = None
    lines: Iterator[Any] | None = None
    broken: bool = False


@dataclass
class ScriptedServer:
    """``answer`` is called for each request, from a thread of its own."""

    answer: Callable[[Request], Answer]
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> ScriptedServer:
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(
                    self.command,
                    parts.path,
                    {key: values[0] for key, values in parse_qs(parts.query).items()},
                    dict(self.headers.items()),
                    json.loads(self.rfile.read(length)) if length else None,
                )
                script.requests.append(request)
                self.send(script.answer(request))

            do_GET = do_PATCH = do_POST = handle_any  # noqa: N815 - http.server's own names

            def send(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                if answer.lines is None:
                    data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                    return
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in answer.lines:
                    data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                if answer.broken:
                    self.close_connection = True
                    return
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def client(self, on_request: Callable[[str, int], None] = lambda verb, status: None) -> Client:
        config = Configuration(host=f"http://127.0.0.1:{self._server.server_address[1]}")
        config.api_key["BearerToken"] = "bearer secret"
        return Client(config, on_request=on_request, threads=2)


def refusal(status: int, message: str, **details: Any) -> Answer:
    """A Status object, as the API server answers."""
    return Answer(status, {"kind": "Status", "message": message, "code": status, "details": details})
