"""What Prometheus reads at ``/metrics``; ``docs/metrics.md`` explains each. One registry a server, none global."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import strata
from strata.engine.api import Engine
from strata.errors import OptionError
from strata.experts.counts import ExpertStats
from strata.ngram.counts import TableCounts
from strata.request import TokenOutput
from strata.scheduler.stats import SchedulerStats, WaitReason
from strata.server.record import RequestRecord
from strata.store.directories import default_cache_dir, nearest_existing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES = ("stop", "length", "timeout", "abort", "error", "rejected", "overloaded", "unavailable")

_TTFT_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_ITL_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_DURATION_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


class Metrics:
    """Counted by the service as requests run; the engine's state is read when Prometheus asks."""

    def __init__(self, engine: Engine, *, model_name: str) -> None:
        # The creation times would double the number of series, and nobody asks for them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self.prompt_tokens = Counter(
            "strata_prompt_tokens", "Prompt tokens of requests that got at least one token.", registry=registry
        )
        self.generation_tokens = Counter(
            "strata_generation_tokens",
            "Tokens generated, those of aborted requests and the token that ends an answer included.",
            registry=registry,
        )
        self.time_to_first_token = Histogram(
            "strata_time_to_first_token_seconds",
            "From the arrival of a request to its first token: tokenising, queueing, prefill.",
            buckets=_TTFT_SECONDS,
            registry=registry,
        )
        self.inter_token_latency = Histogram(
            "strata_inter_token_latency_seconds",
            "Between one token of an answer and the next.",
            buckets=_ITL_SECONDS,
            registry=registry,
        )
        self.request_duration = Histogram(
            "strata_request_duration_seconds",
            "From the arrival of a request to the end of its answer, for requests that got at least one token.",
            buckets=_DURATION_SECONDS,
            registry=registry,
        )
        self.requests = Counter(
            "strata_requests", "Requests for an answer, by how they ended.", ["outcome"], registry=registry
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)  # a series that starts at zero can be rated from its first event on
        registry.register(_EngineState(engine, model_name))

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)


class Pace:
    """Counts the tokens of one choice as they come.

    record: of its request, which is counted as well. num_prompt_tokens: what is counted with the first of them; None
    for a choice whose prompt another one counts.
    """

    def __init__(self, metrics: Metrics, record: RequestRecord, num_prompt_tokens: int | None) -> None:
        self._metrics = metrics
        self._record = record
        self._num_prompt_tokens = num_prompt_tokens
        self._previous: float | None = None

    def count(self, output: TokenOutput) -> None:
        """Some have come, together."""
        now, num_tokens = time.monotonic(), len(output.token_ids)
        is_first = self._previous is None
        self._record.take(output, now, counts_prompt=is_first and self._num_prompt_tokens is not None)
        if self._previous is not None:
            for _ in range(num_tokens):
                self._metrics.inter_token_latency.observe((now - self._previous) / num_tokens)
        elif self._num_prompt_tokens is not None:
            self._metrics.prompt_tokens.inc(self._num_prompt_tokens)
            self._metrics.time_to_first_token.observe(now - self._record.arrived)
        self._previous = now
        self._metrics.generation_tokens.inc(num_tokens)


# What the scheduler counts, one figure each.
_FIGURES: tuple[
    tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Callable[[SchedulerStats], float]], ...
] = (
    (
        GaugeMetricFamily,
        "strata_requests_running",
        "Requests that hold KV blocks: in prefill or decode.",
        lambda stats: stats.num_running,
    ),
    (
        GaugeMetricFamily,
        "strata_requests_waiting",
        "Requests in the queue; --max-waiting limits it.",
        lambda stats: stats.num_waiting,
    ),
    (
        GaugeMetricFamily,
        "strata_kv_cache_usage_ratio",
        "Share of the KV cache's blocks that requests use, 0 to 1.",
        lambda stats: stats.kv_usage,
    ),
    (
        CounterMetricFamily,
        "strata_step_seconds",
        "Seconds that the engine's steps took; HTTP and text are not in it.",
        lambda stats: stats.step_seconds,
    ),
    (
        CounterMetricFamily,
        "strata_preemptions",
        "Requests that lost their KV blocks to others and were put back into the queue.",
        lambda stats: stats.num_preemptions,
    ),
    (
        CounterMetricFamily,
        "strata_prefix_cache_queries",
        "Prompt tokens of requests that began to run, looked for in the prefix cache.",
        lambda stats: stats.num_prefix_queries,
    ),
    (
        CounterMetricFamily,
        "strata_prefix_cache_hits",
        "Those of them that the prefix cache had, and that were not computed again.",
        lambda stats: stats.num_prefix_hits,
    ),
    (
        GaugeMetricFamily,
        "strata_prefill_chunk_tokens",
        "Prompt tokens that a step may run beside decoding sequences, as --decode-latency-ms has it now.",
        lambda stats: stats.max_prefill_tokens,
    ),
    (
        CounterMetricFamily,
        "strata_draft_tokens",
        "Tokens of drafts that steps ran, as --speculative has it.",
        lambda stats: stats.num_drafted,
    ),
    (
        CounterMetricFamily,
        "strata_accepted_draft_tokens",
        "Those of them that were right.",
        lambda stats: stats.num_accepted,
    ),
)
_NOTHING = SchedulerStats(0, 0, 0, 0, 0)  # until the engine says more


class _EngineState(Collector):
    """Mirrors the engine; reading it at scrape time costs the token path nothing."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "strata_engine_ready",
            "1 while the engine serves; 0 while it loads or after it failed.",
            value=self._engine.state == "ready",
        )
        yield self._build()
        yield self._load()
        yield from _disk()
        stats = self._engine.stats or _NOTHING
        for family, name, text, figure in _FIGURES:
            yield family(name, text, value=figure(stats))
        waiting = {reason.value: stats.num_waiting if stats.waiting_for is reason else 0 for reason in WaitReason}
        text = "Requests in the queue, by what the first of them lacked in the last step."
        yield _gauges("strata_requests_waiting_by_reason", text, "reason", waiting)
        blocks = {
            "free": stats.num_empty_blocks,
            "cached": stats.num_cached_blocks,
            "used": stats.num_used_blocks,
        }
        yield _gauges("strata_kv_blocks", "Blocks of the KV cache; their sum is the size of the pool.", "state", blocks)
        if stats.num_total_states:
            yield from _states(stats)
        if self._engine.experts is not None:
            yield from _experts(self._engine.experts)
        if self._engine.tables is not None:
            yield from _tables(self._engine.tables)

    def _build(self) -> Metric:
        ready = self._engine.ready
        facts = {"dtype": ready.dtype, "device": ready.device} if ready else {"dtype": "", "device": ""}
        build = InfoMetricFamily("strata_build", "Always 1; the labels say what is served.")
        build.add_metric([], {"version": strata.__version__, "served_name": self._model_name, **facts})
        return build

    def _load(self) -> Metric:
        progress = self._engine.progress
        num_bytes = (
            {"done": progress.bytes_done, "total": progress.bytes_total} if progress else {"done": 0, "total": 0}
        )
        return _gauges("strata_load_bytes", "Bytes of the present or last phase of a start.", "state", num_bytes)


def _disk() -> Iterator[Metric]:
    """There is no such series where the cache's place cannot be looked at."""
    try:
        usage = shutil.disk_usage(nearest_existing(default_cache_dir()))
    except (OSError, OptionError):
        return
    text = "The file system that has the cache of converted weights."
    yield _gauges("strata_cache_disk_bytes", text, "state", {"free": usage.free, "total": usage.total})


def _states(stats: SchedulerStats) -> Iterator[Metric]:
    """There are no such series where no layer has linear attention."""
    slots = {"free": stats.num_total_states - stats.num_used_states, "used": stats.num_used_states}
    text = "Slots for the states of linear attention, one for each request that may run."
    yield _gauges("strata_state_slots", text, "state", slots)
    kept = {"free": stats.num_total_snapshots - stats.num_snapshots, "cached": stats.num_snapshots}
    text = "Slots for states that the prefix cache keeps."
    yield _gauges("strata_state_snapshots", text, "state", kept)


def _experts(stats: ExpertStats) -> Iterator[Metric]:
    """Of experts beyond VRAM; there is no such series where all are in one place."""
    total = stats.total
    held = {"vram": stats.num_vram, "host": stats.num_host, "disk": stats.num_disk}
    yield _gauges(
        "strata_experts",
        "Routed experts of all layers that a tier has now; one may be in VRAM and on the host.",
        "tier",
        held,
    )
    yield _counters(
        "strata_expert_uses",
        "Experts that a layer needed in steps of few tokens, by where they were; each counts once a step.",
        ("layer", "source"),
        {
            (str(layer), source): number
            for layer, counts in stats.layers.items()
            for source, number in (("vram", counts.in_vram), ("pcie", counts.fetched), ("cpu", counts.computed))
        },
    )
    moved: dict[tuple[str, ...], float] = {
        ("host", "to_vram", "decode"): stats.num_bytes(total.fetched),
        ("host", "to_vram", "prefetch"): stats.num_bytes(total.prefetched),
        ("host", "to_vram", "prefill"): stats.num_bytes(total.streamed),
        ("host", "to_cpu", "decode"): stats.num_bytes(total.computed),
    }
    if stats.disk_bytes is not None:
        moved["disk", "to_host", "any"] = stats.disk_bytes
    text = "Bytes of experts that left a tier, by where they went and what for; to_vram is over PCIe."
    yield _counters("strata_expert_bytes", text, ("tier", "direction", "purpose"), moved)
    yield _counters(
        "strata_expert_prefetch_bytes",
        "Bytes of experts that were fetched before their layer asked: issued, and of these used or wasted.",
        ("outcome",),
        {
            ("issued",): stats.num_bytes(total.prefetched),
            ("used",): stats.num_bytes(total.prefetch_used),
            ("wasted",): stats.num_bytes(total.prefetch_wasted),
        },
    )
    if stats.cpu is not None:
        cpu = stats.cpu
        text = "Requests to the CPU's threads: of each layer of a step that leaves experts to them, and of its last."
        yield CounterMetricFamily("strata_expert_cpu_jobs", text, value=cpu.jobs)
        text = "Seconds of the CPU's threads, all of them being one: busy, or idle while a request was announced."
        states: dict[tuple[str, ...], float] = {("busy",): cpu.busy_seconds, ("idle",): cpu.idle_seconds}
        yield _counters("strata_expert_cpu_seconds", text, ("state",), states)
        text = "Tokens, once a layer, whose experts the CPU's threads chose."
        yield CounterMetricFamily("strata_expert_cpu_routed_tokens", text, value=cpu.routed)
        text = "Requests to the CPU's threads that were dropped or answered too late; none in a machine that works."
        yield CounterMetricFamily("strata_expert_cpu_stale_requests", text, value=cpu.stale)
        text = "Seconds that the GPU waited for the CPU's answers, its own experts being done."
        yield CounterMetricFamily("strata_expert_wait_seconds", text, value=total.waited_seconds)


def _tables(counts: TableCounts) -> Iterator[Metric]:
    """There are no such series where the model has no tables of n-grams."""
    text = "Rows of tables of n-grams that tokens asked for."
    yield CounterMetricFamily("strata_table_rows", text, value=counts.rows)
    read: dict[tuple[str, ...], float] = {("page_cache",): counts.cached_bytes, ("disk",): counts.disk_bytes}
    text = "Bytes of the pages that hold these rows, each once a step, by where they came from."
    yield _counters("strata_table_read_bytes", text, ("source",), read)


def _counters(
    name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> CounterMetricFamily:
    """One for each combination of labels."""
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """One for each value of a label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
