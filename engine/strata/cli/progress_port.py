"""How far a long command is, over HTTP: `GET /ready` says it as a server that loads does."""

from __future__ import annotations

import json
import logging
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from strata.errors import OptionError

logger = logging.getLogger(__name__)

VARIABLE = "STRATA_PROGRESS_PORT"


class ProgressPort:
    """Call it as a ``ProgressBar``. ``port`` None: nobody listens. 0: any that is free."""

    def __init__(self, port: int | None) -> None:
        self._last = ("start", 0, 0)
        self._server: ThreadingHTTPServer | None = None
        if port is None:
            return
        try:
            self._server = ThreadingHTTPServer(("", port), self._handler())
        except OSError as error:  # the command does its work all the same
            logger.warning("nobody can ask port %d how far this is: %s", port, error.strerror or error)
            return
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True, name="progress").start()

    @classmethod
    def from_environment(cls) -> ProgressPort:
        """By $STRATA_PROGRESS_PORT. Raises OptionError where that is no port."""
        text = os.environ.get(VARIABLE, "")
        if text and not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
            raise OptionError(f"{VARIABLE} is {text!r}; it must be a port from 1 to 65535: correct or unset it")
        return cls(int(text) if text else None)

    @property
    def port(self) -> int | None:
        """Where it listens."""
        return None if self._server is None else int(self._server.server_address[1])

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._last = (phase, done, total)

    def __enter__(self) -> ProgressPort:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # seconds that a client may be silent

            def do_GET(self) -> None:
                phase, done, total = outer._last
                is_known = self.path == "/ready"
                told = {"status": "loading", "phase": phase, "bytes_done": done, "bytes_total": total}
                body = json.dumps(told if is_known else {"error": "there is /ready alone"}).encode()
                self.send_response(503 if is_known else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        return Handler
