"""What Prometheus reads: the right counts, and a page that explains outcomes and reasons."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import strata
from strata.engine.fake import FakeEngine
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.experts.ways import Way
from strata.native.pool import CpuWork
from strata.ngram.counts import TableCounts
from strata.scheduler.stats import SchedulerStats, WaitReason
from strata.server.metrics import OUTCOMES, Metrics
from tests.server.conftest import Serve

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


# Five of eight found; two prefetched, of which one was used; two came with a prompt.
EXPERTS = ExpertStats(
    {0: ExpertCounts(4, 3, 1), 2: ExpertCounts(4, 2, 1, 2, 1, 0, 2, 500_000_000)},
    num_vram=4,
    num_host=8,
    expert_bytes=1000,
    cpu=CpuWork(jobs=1, busy_seconds=0.25, idle_seconds=1.5, routed=7, stale=2),
    way=Way((0, 1, 1), "gate"),
    num_disk=3,
    disk_bytes=4096,
)


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
    assert served.metric("strata_kv_cache_usage_ratio") == 0
    assert served.metric("strata_requests_running") == 0
    assert served.metric("strata_load_bytes", state="total") == 100
    labels = {"version": strata.__version__, "served_name": "tiny", "dtype": "bf16", "device": "fake"}
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
            num_drafted=70,
            num_accepted=30,
        )


class HybridEngine(FakeEngine):
    """Of a model with linear attention."""

    @property
    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            3, 0, 1, 2, 0, num_used_states=3, num_total_states=16, num_snapshots=5, num_total_snapshots=7
        )


@pytest.mark.parametrize(
    "line",
    [
        'strata_state_slots{state="used"} 3.0',
        'strata_state_slots{state="free"} 13.0',
        'strata_state_snapshots{state="cached"} 5.0',
        'strata_state_snapshots{state="free"} 2.0',
    ],
)
def test_states_of_linear_attention_are_shown(line: str) -> None:
    assert line in Metrics(HybridEngine(), model_name="m").render().decode().splitlines()
    assert "strata_state_" not in Metrics(BusyEngine(), model_name="m").render().decode()


@pytest.mark.parametrize(
    "line",
    [
        "strata_requests_running 2.0",
        "strata_requests_waiting 3.0",
        "strata_kv_cache_usage_ratio 0.21875",
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
        "strata_draft_tokens_total 70.0",
        "strata_accepted_draft_tokens_total 30.0",
    ],
)
def test_the_schedulers_figures_are_shown(line: str) -> None:
    assert line in Metrics(BusyEngine(), model_name="m").render().decode().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'strata_experts{tier="vram"} 4.0',
        'strata_experts{tier="host"} 8.0',
        'strata_experts{tier="disk"} 3.0',
        'strata_expert_bytes_total{direction="to_host",purpose="any",tier="disk"} 4096.0',
        'strata_expert_uses_total{layer="0",source="vram"} 3.0',
        'strata_expert_uses_total{layer="0",source="pcie"} 1.0',
        'strata_expert_uses_total{layer="0",source="cpu"} 0.0',
        'strata_expert_uses_total{layer="2",source="cpu"} 1.0',
        'strata_expert_bytes_total{direction="to_vram",purpose="decode",tier="host"} 2000.0',
        'strata_expert_bytes_total{direction="to_vram",purpose="prefetch",tier="host"} 2000.0',
        'strata_expert_bytes_total{direction="to_vram",purpose="prefill",tier="host"} 2000.0',
        'strata_expert_bytes_total{direction="to_cpu",purpose="decode",tier="host"} 1000.0',
        'strata_expert_prefetch_bytes_total{outcome="issued"} 2000.0',
        'strata_expert_prefetch_bytes_total{outcome="used"} 1000.0',
        'strata_expert_prefetch_bytes_total{outcome="wasted"} 0.0',
        "strata_expert_cpu_jobs_total 1.0",
        'strata_expert_cpu_seconds_total{state="busy"} 0.25',
        'strata_expert_cpu_seconds_total{state="idle"} 1.5',
        "strata_expert_cpu_routed_tokens_total 7.0",
        "strata_expert_cpu_stale_requests_total 2.0",
        "strata_expert_wait_seconds_total 0.5",
    ],
)
def test_the_experts_figures_are_shown(line: str) -> None:
    engine = FakeEngine(experts=EXPERTS)
    asyncio.run(engine.start())
    assert line in Metrics(engine, model_name="m").render().decode().splitlines()


def test_a_model_whose_experts_are_in_one_place_has_no_series_of_them(serve: Serve) -> None:
    assert "strata_expert" not in serve().client.get("/metrics").text


def test_experts_that_only_the_card_reads_have_no_series_of_the_cpu(serve: Serve) -> None:
    text = serve(experts=replace(EXPERTS, cpu=None, num_disk=0, disk_bytes=None)).client.get("/metrics").text
    assert "strata_expert_uses_total" in text
    assert 'tier="disk"} 0.0' in text
    assert "to_host" not in text
    assert not re.search("strata_expert_(cpu|wait)", text)


def test_what_was_read_of_tables_is_shown_where_there_are_any(serve: Serve) -> None:
    assert "strata_table" not in serve().client.get("/metrics").text
    lines = serve(tables=TableCounts(64, 4096, 8192)).client.get("/metrics").text.splitlines()
    assert "strata_table_rows_total 64.0" in lines
    assert 'strata_table_read_bytes_total{source="page_cache"} 4096.0' in lines
    assert 'strata_table_read_bytes_total{source="disk"} 8192.0' in lines


def test_the_disk_of_the_cache_is_shown_before_there_is_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "not" / "yet"))
    metrics = Metrics(FakeEngine(), model_name="m")
    shown = {
        state: metrics.registry.get_sample_value("strata_cache_disk_bytes", {"state": state})
        for state in ("free", "total")
    }
    assert shown["total"] == shutil.disk_usage(tmp_path).total
    assert 0 < (shown["free"] or 0) <= shown["total"]


def test_the_page_names_every_reason_to_wait() -> None:
    page = PAGE.read_text("utf-8")
    assert [reason for reason in WaitReason if f"`{reason}`" not in page] == []


def test_no_series_tells_creation_times(serve: Serve) -> None:
    assert "_created" not in serve().client.get("/metrics").text
