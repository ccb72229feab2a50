"""One model: its speed, its requests, its KV cache, and its experts beyond VRAM."""

from __future__ import annotations

from dashboards.panel import MODEL, NAMESPACE, Dashboard, Panel, Query, Row

OF = 'namespace=~"$namespace",model=~"$model"'
_RATE = "[$__rate_interval]"


def _rate(name: str, by: str = "", **labels: str) -> str:
    """The sum over all replicas."""
    chosen = ",".join([*(f'{label}="{value}"' for label, value in labels.items()), OF])
    return f"sum{f' by ({by}) ' if by else ''}(rate({name}{{{chosen}}}{_RATE}))"


def _percentiles(name: str) -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({share}, {_rate(f'{name}_bucket', 'le')})", words)
        for share, words in ((0.5, "median"), (0.95, "95th"), (0.99, "99th"))
    )


_SPEED = Row(
    "Speed",
    (
        Panel(
            "Tokens a second",
            "Generated, and of prompts that were taken in; all replicas together.",
            "short",
            (
                Query(_rate("strata_generation_tokens_total"), "generated"),
                Query(_rate("strata_prompt_tokens_total"), "prompts"),
            ),
        ),
        Panel(
            "Time to the first token",
            "From the arrival of a request: tokenising, queueing, prefill.",
            "s",
            _percentiles("strata_time_to_first_token_seconds"),
        ),
        Panel(
            "Time between tokens",
            "Between one token of an answer and the next.",
            "s",
            _percentiles("strata_inter_token_latency_seconds"),
        ),
        Panel(
            "Tokens a second of a replica's work",
            "Generated over the time that its steps took: the engine's own speed, beside what the planner expects and "
            "at most allows of a full batch.",
            "short",
            (
                Query("strata:tokens_per_step_second:rate5m{" + OF + "}", "{{namespace}}/{{model}} measured"),
                Query(
                    "max by (namespace, model, kind) (strata_model_tokens_per_second"
                    f'{{kind=~"expected|upper_bound",{OF}}})',
                    "{{namespace}}/{{model}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Planned over measured",
            "How many times as fast as measured the planner expects it to be. Above 2 while requests wait, something "
            "is wrong; while few run, no batch is full.",
            "short",
            (
                Query(
                    f'max by (namespace, model) (strata_model_tokens_per_second{{kind="expected",{OF}}}) '
                    "/ strata:tokens_per_step_second:rate5m",
                    "{{namespace}}/{{model}}",
                ),
            ),
            warn=2,
        ),
        Panel(
            "Time of a request",
            "From its arrival to the end of its answer.",
            "s",
            _percentiles("strata_request_duration_seconds"),
        ),
    ),
)

_REQUESTS = Row(
    "Requests",
    (
        Panel(
            "Running and waiting",
            "Requests that hold KV blocks, and those in the queue.",
            "short",
            (
                Query(f"sum(strata_requests_running{{{OF}}})", "running"),
                Query(f"sum(strata_requests_waiting{{{OF}}})", "waiting"),
            ),
        ),
        Panel(
            "Why they wait",
            "What the first in the queue lacks: a slot, room in the KV cache, or a step that was not full.",
            "short",
            (Query(f"sum by (reason) (strata_requests_waiting_by_reason{{{OF}}})", "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "How they ended",
            "Requests of every second by their outcome.",
            "reqps",
            (Query(_rate("strata_requests_total", "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
    ),
)

_KV = Row(
    "KV cache",
    (
        Panel(
            "Blocks",
            "Used by requests, kept for requests that begin alike, and free.",
            "short",
            (Query(f"sum by (state) (strata_kv_blocks{{{OF}}})", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Share in use",
            "Blocks of requests, of all.",
            "percentunit",
            (
                Query(
                    f'sum(strata_kv_blocks{{state="used",{OF}}}) / sum(strata_kv_blocks{{{OF}}})',
                    "used",
                ),
            ),
            top=1,
            warn=0.9,
        ),
        Panel(
            "Prefix cache",
            "Share of prompt tokens that it had, so that they were not computed again.",
            "percentunit",
            (
                Query(
                    f"{_rate('strata_prefix_cache_hits_total')} / {_rate('strata_prefix_cache_queries_total')}",
                    "hits",
                ),
            ),
            top=1,
        ),
        Panel(
            "Preemptions",
            "Requests of every second that lost their blocks to others.",
            "reqps",
            (Query(_rate("strata_preemptions_total"), "preempted"),),
        ),
        Panel(
            "Prefill chunk",
            "Prompt tokens that a step may run beside decoding sequences.",
            "short",
            (Query(f"max by (pod) (strata_prefill_chunk_tokens{{{OF}}})", "{{pod}}"),),
        ),
    ),
)

_EXPERTS = Row(
    "Experts beyond VRAM",
    (
        Panel(
            "Hit ratio",
            "Experts that steps needed and found in VRAM, of all that they needed.",
            "percentunit",
            (Query("strata:expert_hits:ratio_rate5m{" + OF + "}", "{{namespace}}/{{model}}"),),
            top=1,
        ),
        Panel(
            "Hit ratio by layer",
            "The same for each layer.",
            "percentunit",
            (
                Query(
                    f"{_rate('strata_expert_uses_total', 'layer', source='vram')} "
                    f"/ {_rate('strata_expert_uses_total', 'layer')}",
                    "layer {{layer}}",
                ),
            ),
            top=1,
        ),
        Panel(
            "Where they were",
            "Experts that steps needed: in VRAM, fetched over PCIe, computed by the CPU.",
            "ops",
            (Query(_rate("strata_expert_uses_total", "source"), "{{source}}"),),
            stacked=True,
        ),
        Panel(
            "Bytes over PCIe",
            "Of experts to the card, by what for: decode, prefetch, prefill.",
            "Bps",
            (Query(_rate("strata_expert_bytes_total", "purpose", direction="to_vram"), "{{purpose}}"),),
            stacked=True,
        ),
        Panel(
            "Bytes to the CPU and from disk",
            "Of experts that the CPU's threads read, and that came from disks.",
            "Bps",
            (
                Query(_rate("strata_expert_bytes_total", direction="to_cpu"), "to the CPU"),
                Query(_rate("strata_expert_bytes_total", direction="to_host"), "from disk", "experts on disk"),
            ),
        ),
        Panel(
            "Prefetched",
            "Share of prefetched bytes that their layer used.",
            "percentunit",
            (
                Query(
                    f"{_rate('strata_expert_prefetch_bytes_total', outcome='used')} "
                    f"/ ({_rate('strata_expert_prefetch_bytes_total', outcome='issued')} > 0)",
                    "used",
                    "experts that are prefetched",
                ),
            ),
            top=1,
        ),
        Panel(
            "The GPU waits for the CPU",
            "Share of the steps' time. High: the CPU computes too many of the misses.",
            "percentunit",
            (Query(f"{_rate('strata_expert_wait_seconds_total')} / {_rate('strata_step_seconds_total')}", "waits"),),
        ),
        Panel(
            "The CPU's threads",
            "Share of the time that they compute experts, or wait for a request that was announced.",
            "percentunit",
            (Query(_rate("strata_expert_cpu_seconds_total", "state"), "{{state}}"),),
        ),
        Panel(
            "Time of a layer on the CPU",
            "From a request's arrival to its answer, on average.",
            "s",
            (
                Query(
                    f"{_rate('strata_expert_cpu_seconds_total', state='busy')} "
                    f"/ {_rate('strata_expert_cpu_jobs_total')}",
                    "mean",
                ),
            ),
        ),
        Panel(
            "Experts by tier",
            "Routed experts of all layers that VRAM, host memory and disk have; one may be in the first two.",
            "short",
            (Query(f"sum by (tier) (strata_experts{{{OF}}})", "{{tier}}"),),
        ),
        Panel(
            "Chosen by the CPU",
            "Tokens of every second, once a layer, whose experts the CPU's threads chose.",
            "ops",
            (Query(_rate("strata_expert_cpu_routed_tokens_total"), "tokens"),),
        ),
        Panel(
            "Stale requests",
            "To the CPU's threads, dropped or answered too late, of every second; none in a machine that works.",
            "ops",
            (Query(_rate("strata_expert_cpu_stale_requests_total"), "stale"),),
        ),
    ),
)

_START = Row(
    "Pods",
    (
        Panel(
            "What is served",
            "Version, name, format and device of each pod.",
            "short",
            (Query(f"strata_build_info{{{OF}}}", "pods"),),
            kind="table",
            width=12,
        ),
        Panel(
            "How far a start is",
            "Of the present or last phase, done and in total: bytes, or tokens while it warms up.",
            "short",
            (Query(f"sum by (pod, state) (strata_load_bytes{{{OF}}})", "{{pod}} {{state}}"),),
            width=6,
        ),
        Panel(
            "Room for the cache",
            "Free bytes of the file system that has the converted weights.",
            "bytes",
            (Query(f'min by (node, pod) (strata_cache_disk_bytes{{state="free",{OF}}})', "{{node}} {{pod}}"),),
            width=6,
        ),
    ),
)

MODELS = Dashboard(
    "strata-model",
    "Strata / Model",
    "Speed, requests, KV cache and experts of one model or several.",
    (NAMESPACE, MODEL),
    (_SPEED, _REQUESTS, _KV, _EXPERTS, _START),
)
