from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from strata_operator import telemetry as rooms
from strata_operator.cluster.cache import Cache
from strata_operator.cluster.loop import Loop
from strata_operator.telemetry import Telemetry
from strata_operator.workqueue import WorkQueue


class Parts:
    """A queue and one watch, as the judge sees them."""

    def __init__(self) -> None:
        self.queue: WorkQueue[str] = WorkQueue()
        self.synced = False
        self.ailment: str | None = None
        watch: Any = SimpleNamespace(
            kind="Pod", ailment=lambda: self.ailment, synced=SimpleNamespace(is_set=lambda: self.synced)
        )
        self.telemetry = Telemetry(self.queue, lambda: [cast("Loop", watch)])


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_healthy(parts: Parts) -> None:
    assert parts.telemetry.ailments() == []


def test_a_watch_that_hangs(parts: Parts) -> None:
    parts.ailment = "the watch of Pod hangs"
    assert parts.telemetry.ailments() == ["the watch of Pod hangs"]


def test_a_reconcile_that_hangs(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "STUCK_SECONDS", -1.0)
    parts.queue.add("m")
    parts.queue.get()
    assert parts.telemetry.ailments() == ["a reconcile hangs"]


def test_another_part_that_ended(parts: Parts) -> None:
    said: list[str | None] = [None]
    parts.telemetry.watch_over(lambda: said[0])
    assert parts.telemetry.ailments() == []
    said[0] = "a worker has ended"
    assert parts.telemetry.ailments() == ["a worker has ended"]


@pytest.fixture
async def http(parts: Parts) -> AsyncIterator[httpx.AsyncClient]:
    runner = await parts.telemetry.serve("127.0.0.1", 0)
    port = runner.addresses[0][1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        yield client
    await runner.cleanup()


async def test_probes(parts: Parts, http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).status_code == 200
    waiting = await http.get("/readyz")
    assert (waiting.status_code, waiting.text) == (503, "waits for the first list of Pod\n")
    parts.synced = True
    assert (await http.get("/readyz")).status_code == 200
    parts.ailment = "the watch of Pod hangs"
    ill = await http.get("/healthz")
    assert (ill.status_code, ill.text) == (503, "the watch of Pod hangs\n")


def gauges(model: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """By name and the last label, of one model that the cache holds."""
    parts = Parts()
    cache = Cache(lambda key: None)
    parts.telemetry.show_models(cache)
    cache.put_model({"metadata": {"namespace": "llm", "name": "m", "uid": "u", "resourceVersion": "1"}, **model})
    found = {}
    for family in parts.telemetry.registry.collect():
        for sample in family.samples:
            if sample.name.startswith("strata_model_"):
                assert (sample.labels.pop("namespace"), sample.labels.pop("model")) == ("llm", "m")
                found[sample.name, *sample.labels.values()] = sample.value
    return found


def test_a_models_status_is_shown() -> None:
    conditions = [
        {"type": "Ready", "status": "False"},
        {"type": "Degraded", "status": "True"},
        {"type": "Cached", "status": "Unknown"},
    ]
    status = {
        "conditions": conditions,
        "replicas": 3,
        "readyReplicas": 1,
        "plan": {"upperBoundTokensPerSecond": 90, "expectedTokensPerSecond": 60},
        "measured": {"tokensPerSecond": 25},
    }
    assert gauges({"spec": {"replicas": 2}, "status": status}) == {
        ("strata_model_condition", "Ready"): 0,
        ("strata_model_condition", "Degraded"): 1,
        ("strata_model_replicas", "wanted"): 2,
        ("strata_model_replicas", "present"): 3,
        ("strata_model_replicas", "ready"): 1,
        ("strata_model_tokens_per_second", "upper_bound"): 90,
        ("strata_model_tokens_per_second", "expected"): 60,
        ("strata_model_tokens_per_second", "measured"): 25,
    }


@pytest.mark.parametrize(("spec", "wanted"), [({}, 1), ({"replicas": 2, "suspend": True}, 0)])
def test_a_model_of_which_nothing_is_known_wants_pods(spec: dict[str, Any], wanted: int) -> None:
    counts = {"wanted": wanted, "present": 0, "ready": 0}
    assert gauges({"spec": spec}) == {("strata_model_replicas", state): count for state, count in counts.items()}


async def test_metrics(parts: Parts, http: httpx.AsyncClient) -> None:
    parts.queue.add("a")
    parts.telemetry.reconciled("changed", 0.02)
    parts.telemetry.requested("apply", 200)
    text = (await http.get("/metrics")).text
    assert 'strata_operator_reconciles_total{outcome="changed"} 1.0' in text
    assert 'strata_operator_reconcile_duration_seconds_bucket{le="0.025"} 1.0' in text
    assert 'strata_operator_api_requests_total{status="200",verb="apply"} 1.0' in text
    assert "strata_operator_queue_depth 1.0" in text
