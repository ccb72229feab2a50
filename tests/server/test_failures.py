"""Experts that fail in the middle of an answer: an error with its reason, no token more, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.engine.client import EngineClient
from strata.errors import EngineError
from strata.server import lifetime
from strata.server.service import Service
from tests.experts.failing_engine import GOOD_STEPS
from tests.experts.test_resident import made_store

WAYS = {
    "worker_hangs": "experts on the CPU took more than 3 s for one layer .* restart the engine",
    "worker_crashes": r"the engine process was ended by signal 11 \(SIGSEGV\)",
    "card_fails": "CUDA error: an illegal memory access was encountered",
}
NO_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")


@pytest.mark.parametrize(
    ("device", "way"),
    [
        ("cpu", "worker_hangs"),
        ("cpu", "worker_crashes"),
        *(pytest.param("cuda", way, marks=NO_CARD) for way in WAYS),
    ],
)
async def test_a_failure_ends_in_its_reason(tmp_path: Path, device: str, way: str) -> None:
    store = made_store(tmp_path, "int4")
    layout = store.manifest.contents.experts
    assert layout is not None
    one_slot = DeviceConfig(device="cpu", num_threads=1, expert_vram_bytes=len(layout.layers) * layout.blob_bytes)
    config = EngineConfig(
        model=str(store.path),
        device=replace(one_slot, device=device, expert_placement="cpu", prefetch="off"),  # type: ignore[arg-type]
        cache=CacheConfig(num_kv_tokens=256),
        scheduler=SchedulerConfig(max_model_len=128, max_num_seqs=2),
    )
    client = EngineClient(config, load=f"tests.experts.failing_engine:{way}")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    ready = asyncio.Event()
    service = Service(client, model_names=("tiny",))
    running = asyncio.create_task(
        lifetime.run(service, listener, grace_seconds=30, on_progress=lambda progress: None, on_ready=ready.set)
    )
    begun = asyncio.create_task(ready.wait())
    await asyncio.wait((begun, running), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    body = {"prompt": list(range(2, 22)), "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    async with asyncio.timeout(120), httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        whole, streamed = await asyncio.gather(
            http.post("/v1/completions", json=body), http.post("/v1/completions", json=body | {"stream": True})
        )
        assert whole.status_code == 500
        assert_says(whole.json()["error"], way)
        *tokens, last = events(streamed)
        assert_says(last["error"], way)
        assert len(tokens) <= GOOD_STEPS
        with pytest.raises(EngineError, match=WAYS[way]):
            await running
    assert client.pid is None


def events(response: httpx.Response) -> list[Any]:
    lines = (line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"] or [response.json()]


def assert_says(error: dict[str, Any], way: str) -> None:
    with pytest.raises(EngineError, match=WAYS[way]):
        raise EngineError(error["message"])
