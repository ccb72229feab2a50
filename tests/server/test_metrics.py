"""What Prometheus reads: the right names, the right counts, and a page that explains them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from strata.engine.fake import FakeEngine
from strata.scheduler.stats import SchedulerStats, WaitReason
from strata.server.metrics import OUTCOMES, Metrics
from tests.server.conftest import Serve, Served

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def exposed_names(served: Served) -> set[str]:
    """Names as a user writes them in a query."""
    text = served.client.get("/metrics").text
    return {
        family.name if family.type != "counter" else f"{family.name}_total"
        for family in text_string_to_metric_families(text)
    }


def test_the_page_explains_every_metric_and_no_other(serve: Serve) -> None:
    served = serve()
    served.chat()
    explained = set(re.findall(r"^\| `(strata_\w+)", PAGE.read_text("utf-8"), re.MULTILINE))
    assert explained == exposed_names(served)


def test_the_page_names_every_outcome() -> None:
    page = PAGE.read_text("utf-8")
    assert [outcome for outcome in OUTCOMES if f"`{outcome}`" not in page] == []


def test_tokens_and_latencies_are_counted(serve: Serve) -> None:
    served = serve("hello world")
    usages = [served.chat(stream=False).json()["usage"] for _ in range(3)]
    completion = sum(usage["completion_tokens"] for usage in usages)
    assert served.metric("strata_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert served.metric("strata_generation_tokens_total") == completion
    assert served.metric("strata_time_to_first_token_seconds_count") == 3
    assert served.metric("strata_inter_token_latency_seconds_count") == completion - 3
    assert served.metric("strata_request_duration_seconds_count") == 3


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [({}, "stop"), ({"stop": "llo"}, "stop"), ({"max_tokens": 1}, "length"), ({"max_tokens": 0}, "rejected")],
)
def test_every_request_is_counted_once_by_its_end(serve: Serve, fields: dict[str, object], outcome: str) -> None:
    served = serve("hello world")
    served.chat(**fields)
    counts = {name: served.metric("strata_requests_total", outcome=name) for name in OUTCOMES}
    assert counts == {name: 1.0 if name == outcome else 0.0 for name in OUTCOMES}


def test_the_engine_is_mirrored(serve: Serve) -> None:
    served = serve()
    free, used = (served.metric("strata_kv_blocks", state=state) for state in ("free", "used"))
    assert (free, used) == (64, 0)
    assert served.metric("strata_requests_running") == 0
    assert served.metric("strata_load_bytes", state="total") == 100
    labels = {"version": "0.1.0", "model": "tiny", "dtype": "bf16", "device": "fake"}
    assert served.metric("strata_build_info", **labels) == 1


class BusyEngine(FakeEngine):
    """Says of itself what a busy engine would."""

    @property
    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=2,
            num_waiting=3,
            num_free_blocks=50,
            num_total_blocks=64,
            num_preemptions=4,
            num_cached_blocks=40,
            num_prefix_queries=1000,
            num_prefix_hits=600,
            max_prefill_tokens=128,
            waiting_for=WaitReason.KV_BLOCKS,
            step_seconds=1.5,
        )


@pytest.mark.parametrize(
    "line",
    [
        "strata_requests_running 2.0",
        "strata_requests_waiting 3.0",
        'strata_requests_waiting_by_reason{reason="kv_blocks"} 3.0',
        'strata_requests_waiting_by_reason{reason="max_num_seqs"} 0.0',
        'strata_kv_blocks{state="used"} 14.0',
        'strata_kv_blocks{state="cached"} 40.0',
        'strata_kv_blocks{state="free"} 10.0',
        "strata_step_seconds_total 1.5",
        "strata_preemptions_total 4.0",
        "strata_prefix_cache_queries_total 1000.0",
        "strata_prefix_cache_hits_total 600.0",
        "strata_prefill_chunk_tokens 128.0",
    ],
)
def test_the_schedulers_figures_are_shown(line: str) -> None:
    assert line in Metrics(BusyEngine(), model_name="m").render().decode().splitlines()


def test_the_page_names_every_reason_to_wait() -> None:
    page = PAGE.read_text("utf-8")
    assert [reason for reason in WaitReason if f"`{reason}`" not in page] == []


def test_no_series_tells_creation_times(serve: Serve) -> None:
    assert "_created" not in serve().client.get("/metrics").text
