"""``/v1/status``: what the engine says of itself, and null for what it cannot say."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

import strata
from strata.server.app import Access, create_app
from strata.server.keys import ApiKeys
from tests.server.conftest import Serve
from tests.server.test_metrics import EXPERTS, BusyEngine


def test_a_loading_server_says_how_far_it_is(serve: Serve) -> None:
    served = serve(wait=False, hold_load=True)
    first = served.client.get("/v1/status").json()
    assert first == {
        "state": "loading",
        "error": None,
        "version": strata.__version__,
        "models": ["tiny", "alias"],
        "model": None,
        "loading": None,
        "traffic": {"prompt_tokens": 0, "generation_tokens": 0, "first_tokens": 0, "first_token_seconds": 0},
        "requests": None,
        "kv_cache": None,
        "states": None,
        "experts": None,
    }
    served.engine.next_stage()
    assert served.client.get("/v1/status").json()["loading"] == {"phase": "load", "bytes_done": 0, "bytes_total": 100}


def test_a_busy_server_shows_its_requests_and_blocks(serve: Serve) -> None:
    status = serve(kind=BusyEngine).client.get("/v1/status").json()
    assert status["state"] == "ready"
    assert status["model"] == {"dtype": "bf16", "device": "fake", "max_model_len": 256}
    assert status["requests"] == {"running": 2, "waiting": 3, "waiting_for": "kv_blocks", "preemptions": 4}
    assert status["kv_cache"] == {
        "block_size": 16,
        "used_blocks": 14,
        "cached_blocks": 40,
        "free_blocks": 10,
        "prefix_queries": 1000,
        "prefix_hits": 600,
    }


def test_states_of_linear_attention_are_shown_where_there_are_some(serve: Serve) -> None:
    assert serve(kind=BusyEngine).client.get("/v1/status").json()["states"] is None
    status = serve(num_states=4).client.get("/v1/status").json()
    assert status["states"] == {"used_slots": 0, "total_slots": 4, "snapshots": 0, "total_snapshots": 0}


def test_tokens_are_counted_from_the_start(serve: Serve) -> None:
    served = serve("hello world")
    usages = [served.chat().json()["usage"] for _ in range(2)]
    traffic = served.client.get("/v1/status").json()["traffic"]
    seconds = traffic.pop("first_token_seconds")
    assert seconds > 0
    assert seconds == served.metric("strata_time_to_first_token_seconds_sum")
    assert traffic == {
        "prompt_tokens": sum(usage["prompt_tokens"] for usage in usages),
        "generation_tokens": sum(usage["completion_tokens"] for usage in usages),
        "first_tokens": 2,
    }


def test_experts_beyond_vram_are_shown_in_all_and_by_layer(serve: Serve) -> None:
    experts = serve(experts=EXPERTS).client.get("/v1/status").json()["experts"]
    layers = experts.pop("layers")
    assert experts == {
        "hit_ratio": 5 / 8,
        "needed": 8,
        "in_vram": 5,
        "fetched": 2,
        "on_cpu": 1,
        "num_vram": 4,
        "num_host": 8,
        "num_disk": 3,
        "expert_bytes": 1000,
        "bytes": {"fetched": 2000, "prefetched": 2000, "prefill": 2000, "cpu": 1000, "disk": 4096},
        "prefetch": {"issued_bytes": 2000, "used_bytes": 1000, "wasted_bytes": 0},
        "policy": {"fetched": [0, 1, 1], "predictor": "gate", "routing_device": "gpu"},
        "cpu": {"jobs": 1, "busy_seconds": 0.25, "idle_seconds": 1.5, "routed_tokens": 7, "stale_requests": 2},
        "wait_seconds": 0.5,
    }
    shares = {"needed": 4, "in_vram": 3, "fetched": 1, "on_cpu": 0, "hit_ratio": 0.75}
    assert layers == [
        {"layer": 0, "wait_seconds": 0.0, **shares},
        {"layer": 2, "wait_seconds": 0.5, **shares, "in_vram": 2, "on_cpu": 1, "hit_ratio": 0.5},
    ]


def test_experts_in_one_place_are_none_beyond_vram(serve: Serve) -> None:
    assert serve().client.get("/v1/status").json()["experts"] is None


def test_a_failed_engine_says_why_and_forgets_what_it_did(serve: Serve) -> None:
    served = serve(experts=EXPERTS)
    served.engine.fail("the card fell off the bus")
    status = served.client.get("/v1/status").json()
    assert (status["state"], status["error"]) == ("failed", "the card fell off the bus")
    assert status["model"] is not None
    assert (status["requests"], status["kv_cache"], status["experts"]) == (None, None, None)


def test_a_server_that_ends_says_so(serve: Serve) -> None:
    served = serve()
    assert served.client.portal is not None
    served.client.portal.call(served.service.drain)
    assert served.client.get("/v1/status").json()["state"] == "stopping"


def test_it_is_not_for_those_without_a_key(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sk-one")
    client = TestClient(create_app(serve().service, Access(ApiKeys(tmp_path / "keys"))))
    assert client.get("/v1/status").status_code == 401
    assert client.get("/v1/status", headers={"Authorization": "Bearer sk-one"}).status_code == 200
