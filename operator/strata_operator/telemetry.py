"""What the operator shows of itself: metrics, and whether it still works; plain HTTP on one port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strata_operator.cluster.cache import Cache
from strata_operator.cluster.loop import Loop
from strata_operator.workqueue import WorkQueue

# A reconcile makes some ten requests of at most 35 s each; one that takes this long hangs.
STUCK_SECONDS = 600.0
OUTCOMES = ("changed", "unchanged", "refused", "blocked", "untold", "leaving", "gone", "retry", "error")
_TRUTH = {"True": 1.0, "False": 0.0}
_SPEEDS = (
    ("upper_bound", "plan", "upperBoundTokensPerSecond"),
    ("expected", "plan", "expectedTokensPerSecond"),
    ("measured", "measured", "tokensPerSecond"),
)


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
        for outcome in OUTCOMES:
            self._reconciles.labels(outcome)  # a series that starts at zero can be rated from its first event on
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

    def show_models(self, cache: Cache) -> None:
        """To be called once: what the statuses of all models say."""
        self.registry.register(_Models(cache))

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
        body = await asyncio.to_thread(exposition.generate_latest, self.registry)  # long, of a thousand models
        return web.Response(body=body, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})


class _Models(Collector):
    """Reads the models' last known statuses when Prometheus asks. Every replica shows the same."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        conditions = GaugeMetricFamily(
            "strata_model_condition",
            "Conditions of a StrataModel: 1 while it is true, 0 while it is false; absent while it is not known.",
            labels=("namespace", "model", "condition"),
        )
        replicas = GaugeMetricFamily(
            "strata_model_replicas",
            "Pods of a StrataModel that are wanted, that there are, and that are ready.",
            labels=("namespace", "model", "state"),
        )
        speeds = GaugeMetricFamily(
            "strata_model_tokens_per_second",
            "Tokens a second of a replica's sequences together: as the planner bounds and expects them of a full batch,"
            " and as measured while its engine works.",
            labels=("namespace", "model", "kind"),
        )
        for key in self._cache.models():
            model = self._cache.model(key)
            if model is None:
                continue
            spec: Mapping[str, Any] = model["spec"]
            status: Mapping[str, Any] = model["status"]
            for one in status.get("conditions") or ():
                if one["status"] in _TRUTH:
                    conditions.add_metric([*key, one["type"]], _TRUTH[one["status"]])
            wanted = 0 if spec.get("suspend") else spec.get("replicas", 1)
            counts = (
                ("wanted", wanted),
                ("present", status.get("replicas", 0)),
                ("ready", status.get("readyReplicas", 0)),
            )
            for state, count in counts:
                replicas.add_metric([*key, state], count)
            for kind, group, field in _SPEEDS:
                if (value := (status.get(group) or {}).get(field)) is not None:
                    speeds.add_metric([*key, kind], value)
        yield from (conditions, replicas, speeds)
