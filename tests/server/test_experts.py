"""Experts beyond VRAM as a client sees them: counted in the engine's process, read from ``/metrics`` and the status."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.engine.client import EngineClient
from strata.server.app import create_app
from strata.server.service import Service
from tests.experts.cached_engine import LOAD
from tests.experts.test_resident import made_store
from tests.server.conftest import wait_ready

LAYERS, TOP_K, SLOTS, EXPERTS = 2, 2, 2, 4


def test_a_prompt_and_its_answer_are_counted_to_the_byte(tmp_path: Path) -> None:
    store = made_store(tmp_path, "int4")
    layout = store.manifest.contents.experts
    assert layout is not None
    device = DeviceConfig(
        device="cpu",
        num_threads=1,
        expert_vram_bytes=SLOTS * LAYERS * layout.blob_bytes,
        expert_placement="fetch",
        prefetch="off",
    )
    config = EngineConfig(model=str(store.path), dtype="int4", device=device, cache=CacheConfig(num_kv_tokens=128))
    service = Service(EngineClient(config, load=LOAD), model_names=("tiny",))
    with TestClient(create_app(service)) as client:
        assert client.portal is not None
        client.portal.call(wait_ready, service)
        before = client.get("/v1/status").json()["experts"]
        assert (before["needed"], before["bytes"]["prefill"], before["cpu"]["jobs"]) == (0, 0, 0), "warm-up left out"
        body = {"prompt": list(range(2, 22)), "max_tokens": 6, "ignore_eos": True, "temperature": 0}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 6
        experts = wait_for_uses(client, 5 * LAYERS * TOP_K)  # the first of six tokens is the prompt's
        metrics = samples(client.get("/metrics").text)
    assert (experts["num_vram"], experts["num_host"]) == (SLOTS * LAYERS, EXPERTS * LAYERS)
    assert [layer["layer"] for layer in experts["layers"]] == [0, 2]
    assert [layer["needed"] for layer in experts["layers"]] == [5 * TOP_K, 5 * TOP_K]
    assert experts["policy"] == {"fetched": [0, 1, 2], "predictor": "off", "routing_device": "gpu"}
    assert experts["on_cpu"] == 0
    assert experts["in_vram"] + experts["fetched"] == experts["needed"]
    assert experts["hit_ratio"] == experts["in_vram"] / experts["needed"]
    size = experts["expert_bytes"]
    assert experts["bytes"] == {
        "fetched": experts["fetched"] * size,
        "prefetched": 0,
        "prefill": (EXPERTS - SLOTS) * LAYERS * size,
        "cpu": 0,
        "disk": None,
    }
    assert experts["cpu"]["jobs"] == 5, "of each step's last layer, for nothing is left to the CPU"
    assert experts["cpu"]["busy_seconds"] > 0
    assert (experts["cpu"]["routed_tokens"], experts["cpu"]["stale_requests"]) == (0, 0)
    assert experts["wait_seconds"] == pytest.approx(sum(layer["wait_seconds"] for layer in experts["layers"]))
    assert metrics["strata_expert_wait_seconds_total",] == experts["wait_seconds"] > 0
    for layer in experts["layers"]:
        for source, key in (("vram", "in_vram"), ("pcie", "fetched"), ("cpu", "on_cpu")):
            assert metrics["strata_expert_uses_total", str(layer["layer"]), source] == layer[key]
    assert metrics["strata_expert_bytes_total", "to_vram", "decode", "host"] == experts["bytes"]["fetched"]
    assert metrics["strata_expert_bytes_total", "to_vram", "prefill", "host"] == experts["bytes"]["prefill"]
    assert metrics["strata_expert_cpu_jobs_total",] == 5


def wait_for_uses(client: TestClient, needed: int) -> dict[str, Any]:
    """The figures follow the last token."""
    until = time.monotonic() + 30
    while True:
        experts: dict[str, Any] = client.get("/v1/status").json()["experts"]
        if experts["needed"] >= needed:
            return experts
        assert time.monotonic() < until, f"{experts['needed']} of {needed} experts are counted"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and the labels' values, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
