"""The agent's parts put together: the loop, the watches of its two objects, and what it shows over HTTP."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, exposition

from strata_operator.agent.agent import Agent
from strata_operator.agent.exporter import Exporter, api_requests
from strata_operator.agent.hardware import Gpus, Host
from strata_operator.agent.mirror import Mirror
from strata_operator.cluster.client import Client
from strata_operator.cluster.loop import Loop

log = logging.getLogger(__name__)

TURN_SECONDS = 5.0
SETTLE_SECONDS = 0.2  # changes come in bursts
UNSYNCED_SECONDS = 1.0  # between two turns while the API server has not told of the node's objects
# A turn asks each of up to 16 cards, for at most 10 s, measures copies to one, and writes three times for at most 35 s.
STUCK_SECONDS = 300.0
FAILED_TURNS = 12  # in a row, a minute of them: a process that starts anew may fare better, and is seen to end


class Process:
    """``start`` returns at once; ``stop`` ends the loop after its turn. Settings stay as they are."""

    def __init__(
        self, gpus: Gpus, host: Host, node: str, make_client: Callable[[Callable[[str, int], None]], Client]
    ) -> None:
        self.registry = CollectorRegistry()
        requests = api_requests(self.registry)
        self._changed = threading.Event()
        self._stopped = threading.Event()
        client = make_client(lambda verb, status: requests.labels(verb, str(status)).inc())
        self._mirror = Mirror(client, node, self._changed.set)
        self.agent = Agent(gpus, host, self._mirror, monotonic=time.monotonic, wall=lambda: datetime.now(UTC))
        self._exporter = Exporter(node, lambda: self.agent.snapshot)
        self.registry.register(self._exporter)
        self._active_at = time.monotonic()
        self._failed_turns = 0  # in a row
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    @property
    def loops(self) -> list[Loop]:
        return list(self._mirror.loops)

    def start(self) -> None:
        for loop in self.loops:
            loop.start()
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """False if the turn under way did not end in time."""
        self._stopped.set()
        self._changed.set()
        for loop in self.loops:
            loop.stop()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def ailments(self) -> list[str]:
        """Why the process should be started anew. A driver or an API server that is away is no reason."""
        found = [ailment for loop in self.loops if (ailment := loop.ailment())]
        if time.monotonic() - self._active_at > STUCK_SECONDS:
            found.append("a turn hangs")
        if self._failed_turns >= FAILED_TURNS:
            found.append("every turn fails: see the log")
        return found

    def unsynced(self) -> list[str]:
        """What keeps it from being ready."""
        missing = [loop.kind for loop in self.loops if not loop.synced.is_set()]
        return missing or ([] if self.agent.snapshot.turn is not None else ["the first turn"])

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._active_at = time.monotonic()
            self._changed.clear()
            self._turn()
            if self._changed.wait(TURN_SECONDS if self._mirror.is_synced else UNSYNCED_SECONDS):
                self._stopped.wait(SETTLE_SECONDS)

    def _turn(self) -> None:
        try:
            self.agent.turn()
        except Exception:  # a defect must not end what watches over the cards
            log.exception("a turn failed; the next one starts over")
            self._failed_turns += 1
            return
        self._failed_turns = 0
        if self.agent.snapshot.turn is not None:
            self._exporter.count(self.agent.snapshot.turn)


def serve(process: Process, address: str, port: int) -> ThreadingHTTPServer:
    """``/healthz``, ``/readyz`` and ``/metrics``, from threads of their own. Raises OSError where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, exposition.generate_latest(process.registry), exposition.CONTENT_TYPE_LATEST)
            elif self.path in ("/healthz", "/readyz"):
                found = process.ailments() if self.path == "/healthz" else process.unsynced()
                text = "\n".join(found or ["ok"]) + "\n"
                self._answer(503 if found else 200, text.encode(), "text/plain; charset=utf-8")
            else:
                self._answer(404, b"known are /healthz, /readyz and /metrics\n", "text/plain; charset=utf-8")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            log.debug(format, *args)

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
