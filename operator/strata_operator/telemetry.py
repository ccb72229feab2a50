"""What the operator shows of itself: metrics, and whether it still works; plain HTTP on one port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition

from strata_operator.cluster.loop import Loop
from strata_operator.workqueue import WorkQueue

# A reconcile makes some ten requests of at most 35 s each; one that takes this long hangs.
STUCK_SECONDS = 600.0


class Telemetry:
    """Collectors in a registry of their own, and the judge behind ``/healthz`` and ``/readyz``."""

    def __init__(self, queue: WorkQueue[Any], loops: Callable[[], Sequence[Loop]]) -> None:
        self._queue = queue
        self._loops = loops
        self._others: list[Callable[[], str | None]] = []
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "strata_operator_reconciles", "Reconciles by their outcome.", ["outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            "strata_operator_reconcile_duration_seconds",
            "Time of one reconcile.",
            buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0),
            registry=self.registry,
        )
        self._requests = Counter(
            "strata_operator_api_requests",
            "Requests to the API server by verb and HTTP status; status 0 means no answer.",
            ["verb", "status"],
            registry=self.registry,
        )
        depth = Gauge("strata_operator_queue_depth", "Models that wait for a reconcile.", registry=self.registry)
        depth.set_function(lambda: len(queue))

    def show_leader(self, leads: Callable[[], bool]) -> None:
        """To be called once where several operators may run."""
        gauge = Gauge("strata_operator_leader", "1 while this operator is the one that works.", registry=self.registry)
        gauge.set_function(lambda: float(leads()))

    def watch_over(self, ailment: Callable[[], str | None]) -> None:
        """One more part, which says why the process should be started anew; None while it works."""
        self._others.append(ailment)

    def reconciled(self, outcome: str, seconds: float) -> None:
        """To be called after each reconcile."""
        self._reconciles.labels(outcome).inc()
        self._seconds.observe(seconds)

    def requested(self, verb: str, status: int) -> None:
        """To be called after each request to the API server."""
        self._requests.labels(verb, str(status)).inc()

    def ailments(self) -> list[str]:
        """Why the process should be started anew; empty while it works. An API server that is down is no reason."""
        judges = [*(loop.ailment for loop in self._loops()), *self._others]
        found = [ailment for judge in judges if (ailment := judge())]
        if self._queue.longest_busy() > STUCK_SECONDS:
            found.append("a reconcile hangs")
        return found

    def unsynced(self) -> list[str]:
        """Kinds whose first list has not come yet."""
        return [loop.kind for loop in self._loops() if not loop.synced.is_set()]

    async def serve(self, address: str, port: int) -> web.AppRunner:
        """Serve ``/healthz``, ``/readyz`` and ``/metrics`` from the loop that runs kopf: if it stalls, so do they."""
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, port).start()
        return runner

    async def _health(self, _: web.Request) -> web.Response:
        found = self.ailments()
        return web.Response(text="\n".join(found or ["ok"]) + "\n", status=503 if found else 200)

    async def _ready(self, _: web.Request) -> web.Response:
        missing = self.unsynced()
        text = f"waits for the first list of {', '.join(missing)}\n" if missing else "ok\n"
        return web.Response(text=text, status=503 if missing else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=exposition.generate_latest(self.registry), headers={"Content-Type": exposition.CONTENT_TYPE_LATEST}
        )
