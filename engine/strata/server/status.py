"""``/v1/status``: the server's state for people and programs that look now and then; Prometheus has ``/metrics``."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from prometheus_client import Counter, Histogram

import strata
from strata.engine.messages import EngineReady, LoadProgress
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.experts.ways import Way
from strata.native.pool import CpuWork
from strata.scheduler.stats import SchedulerStats, WaitReason
from strata.server.described import Answered, answers
from strata.server.metrics import Metrics
from strata.server.service import Service


class ModelStatus(Answered):
    """What is served, once it is loaded."""

    dtype: str
    device: str
    max_model_len: int


class Loading(Answered):
    """How far the start has come, or came."""

    phase: str
    bytes_done: int
    bytes_total: int


class Requests(Answered):
    """Requests in the engine; ``waiting_for`` is what the first in the queue lacks."""

    running: int
    waiting: int
    waiting_for: WaitReason | None
    preemptions: int


class Traffic(Answered):
    """Tokens since the start; the requests that have got their first one, and the seconds that these waited for it, all
    together. The difference between two looks gives rates and means."""

    prompt_tokens: int
    generation_tokens: int
    first_tokens: int
    first_token_seconds: float


class KVCache(Answered):
    """Blocks of the KV cache, of ``block_size`` tokens each, and prompt tokens that the prefix cache was asked for."""

    block_size: int
    used_blocks: int
    cached_blocks: int
    free_blocks: int
    prefix_queries: int
    prefix_hits: int


class States(Answered):
    """Slots for states of linear attention, one a request that runs, and for those that the prefix cache keeps: with
    ``total_snapshots`` 0 requests share no beginnings."""

    used_slots: int
    total_slots: int
    snapshots: int
    total_snapshots: int


class Uses(Answered):
    """Experts that steps of few tokens needed, and where they were. ``hit_ratio`` is the share in VRAM, null before the
    first step."""

    hit_ratio: float | None
    needed: int
    in_vram: int
    fetched: int
    on_cpu: int


class LayerUses(Uses):
    """Those of one layer, with the seconds that the device waited for the CPU's answers there."""

    layer: int
    wait_seconds: float


class MovedBytes(Answered):
    """Bytes of experts that left host memory: over PCIe for steps of few tokens, ahead of them, and for prompts; and
    what the CPU read. What came from disk is null where no expert is there, or the kernel does not tell."""

    fetched: int
    prefetched: int
    prefill: int
    cpu: int
    disk: int | None


class Prefetch(Answered):
    """Bytes that were fetched before their layer asked, and what became of them. What was neither used nor wasted is
    still in VRAM."""

    issued_bytes: int
    used_bytes: int
    wasted_bytes: int


class CpuExperts(Answered):
    """What the CPU's threads did: jobs of a layer each, seconds with one, and seconds in which one was awaited; tokens
    whose experts they chose; requests that were dropped, or answered when nobody waited any more."""

    jobs: int
    busy_seconds: float
    idle_seconds: float
    routed_tokens: int
    stale_requests: int


class PolicyStatus(Answered):
    """What a layer does about experts that VRAM has not: of 0, 1, 2 ... of a token's, how many are fetched, the others
    being computed by the CPU; who guesses what the next layer needs; and where a token's experts are chosen."""

    fetched: list[int]
    predictor: str
    routing_device: str


class Experts(Uses):
    """Experts beyond VRAM: all that was counted since the model was loaded, up to a second ago. ``num_vram``,
    ``num_host`` and ``num_disk`` are those that each tier has now, ``expert_bytes`` one's size in host memory."""

    num_vram: int
    num_host: int
    num_disk: int
    expert_bytes: int
    bytes: MovedBytes
    prefetch: Prefetch
    policy: PolicyStatus | None
    cpu: CpuExperts | None
    wait_seconds: float
    layers: list[LayerUses]


class Status(Answered):
    """The server's state. What is not known yet is null, and so are ``states`` where no layer has linear attention, and
    ``experts`` where all are in one place or the model has none."""

    state: Literal["loading", "ready", "stopping", "failed", "closed"]
    error: str | None
    version: str
    models: list[str]
    model: ModelStatus | None
    loading: Loading | None
    traffic: Traffic
    requests: Requests | None
    kv_cache: KVCache | None
    states: States | None
    experts: Experts | None


def add_status(app: FastAPI, service: Service) -> None:
    """``/v1/status``."""

    @app.get("/v1/status", responses=answers(Status, 401, 403))
    async def status() -> Status:
        """What the server does now, and what experts beyond VRAM cost so far."""
        return status_of(service)


def status_of(service: Service) -> Status:
    """The state now."""
    engine, progress = service.backend.engine, service.backend.engine.progress
    return Status(
        state="stopping" if service.stopping and service.backend.state == "ready" else service.backend.state,
        error=None if service.backend.error is None else str(service.backend.error),
        version=strata.__version__,
        models=list(service.model_names),
        model=None if engine.ready is None else _model(engine.ready),
        loading=None if progress is None else _loading(progress),
        traffic=_traffic(service.metrics),
        requests=None if engine.stats is None else _requests(engine.stats),
        kv_cache=None if engine.stats is None or engine.ready is None else _kv_cache(engine.stats, engine.ready),
        states=_states(engine.stats),
        experts=None if engine.experts is None else _experts(engine.experts),
    )


def _model(ready: EngineReady) -> ModelStatus:
    return ModelStatus(dtype=ready.dtype, device=ready.device, max_model_len=ready.max_model_len)


def _loading(progress: LoadProgress) -> Loading:
    return Loading(phase=progress.phase, bytes_done=progress.bytes_done, bytes_total=progress.bytes_total)


def _traffic(metrics: Metrics) -> Traffic:
    first_tokens = _samples(metrics.time_to_first_token)
    return Traffic(
        prompt_tokens=int(_samples(metrics.prompt_tokens)["strata_prompt_tokens_total"]),
        generation_tokens=int(_samples(metrics.generation_tokens)["strata_generation_tokens_total"]),
        first_tokens=int(first_tokens["strata_time_to_first_token_seconds_count"]),
        first_token_seconds=first_tokens["strata_time_to_first_token_seconds_sum"],
    )


def _samples(metric: Counter | Histogram) -> dict[str, float]:
    return {sample.name: sample.value for family in metric.collect() for sample in family.samples}


def _requests(stats: SchedulerStats) -> Requests:
    return Requests(
        running=stats.num_running,
        waiting=stats.num_waiting,
        waiting_for=stats.waiting_for,
        preemptions=stats.num_preemptions,
    )


def _kv_cache(stats: SchedulerStats, ready: EngineReady) -> KVCache:
    return KVCache(
        block_size=ready.block_size,
        used_blocks=stats.num_used_blocks,
        cached_blocks=stats.num_cached_blocks,
        free_blocks=stats.num_empty_blocks,
        prefix_queries=stats.num_prefix_queries,
        prefix_hits=stats.num_prefix_hits,
    )


def _states(stats: SchedulerStats | None) -> States | None:
    if stats is None or not stats.num_total_states:
        return None
    return States(
        used_slots=stats.num_used_states,
        total_slots=stats.num_total_states,
        snapshots=stats.num_snapshots,
        total_snapshots=stats.num_total_snapshots,
    )


def _experts(stats: ExpertStats) -> Experts:
    total, size = stats.total, stats.num_bytes
    return Experts(
        **_uses(total),
        num_vram=stats.num_vram,
        num_host=stats.num_host,
        num_disk=stats.num_disk,
        expert_bytes=stats.expert_bytes,
        bytes=MovedBytes(
            fetched=size(total.fetched),
            prefetched=size(total.prefetched),
            prefill=size(total.streamed),
            cpu=size(total.computed),
            disk=stats.disk_bytes,
        ),
        prefetch=Prefetch(
            issued_bytes=size(total.prefetched),
            used_bytes=size(total.prefetch_used),
            wasted_bytes=size(total.prefetch_wasted),
        ),
        policy=None if stats.way is None else _policy(stats.way),
        cpu=None if stats.cpu is None else _cpu(stats.cpu),
        wait_seconds=total.waited_seconds,
        layers=[
            LayerUses(layer=layer, wait_seconds=counts.waited_seconds, **_uses(counts))
            for layer, counts in stats.layers.items()
        ],
    )


def _policy(way: Way) -> PolicyStatus:
    return PolicyStatus(fetched=list(way.split), predictor=way.predictor, routing_device=way.routed_on)


def _cpu(work: CpuWork) -> CpuExperts:
    return CpuExperts(
        jobs=work.jobs,
        busy_seconds=work.busy_seconds,
        idle_seconds=work.idle_seconds,
        routed_tokens=work.routed,
        stale_requests=work.stale,
    )


def _uses(counts: ExpertCounts) -> dict[str, Any]:
    return {
        "hit_ratio": counts.hit_ratio,
        "needed": counts.needed,
        "in_vram": counts.in_vram,
        "fetched": counts.fetched,
        "on_cpu": counts.computed,
    }
