"""A small HTTP server beside a test, in threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Of a POST: its path, its headers by their names in lower case, its body; returns the answer's body.
Answer = Callable[[str, dict[str, str], bytes], bytes]


@contextmanager
def running(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server on a free port, without a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(answer: Answer, content_type: str) -> Iterator[str]:
    """One that answers every POST with 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            said = answer(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    with running(Handler) as url:
        yield url
