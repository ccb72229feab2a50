"""What `strata serve` takes on its command line, and the engine's settings that come of it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from strata.bench.serve.address import DEFAULT_HOST, DEFAULT_PORT
from strata.cli.arguments import gibibytes, milliseconds, origins, positive, share, whole
from strata.cli.options import DEFAULTS, add_device, add_dtype, add_revision, add_source, device_config, source
from strata.cli.published import add_published
from strata.cli.traces import ENDPOINTS, OPTION, receiver
from strata.config import CacheConfig, EngineConfig, SchedulerConfig
from strata.config.engine import BLOCK_SIZES, CPU_STEP_TOKENS, SPECULATIVE, STATE_CACHE_SHARE
from strata.errors import OptionError
from strata.plan.step import CARD_GIB, CARD_TOKENS, LARGE_CARD_GIB, LARGE_CARD_TOKENS
from strata.server.output.formats import REASONING_FORMATS, TOOL_FORMATS

DEFAULT_STALL_SECONDS = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare all of them, in groups."""
    add_source(parser, "MODEL", "--model")
    _add_model_options(parser)
    _add_batch_options(parser)
    _add_cache_options(parser)
    _add_api_options(parser)
    _add_http_options(parser)
    add_published(parser)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model and device")
    add_revision(model)
    add_dtype(model)
    add_device(model)
    model.add_argument(
        "--gpu-memory-utilization",
        type=share,
        default=DEFAULTS.device.gpu_memory_utilization,
        metavar="SHARE",
        help=f"share of the GPU's memory to fill, above 0 up to 1 (default: {DEFAULTS.device.gpu_memory_utilization})",
    )
    model.add_argument(
        "--load-stall-seconds",
        type=positive,
        default=DEFAULT_STALL_SECONDS,
        metavar="S",
        help="seconds that fetching, converting or loading may go on without progress, before it ends as failed "
        f"(default: {DEFAULT_STALL_SECONDS:g})",
    )


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    batch = parser.add_argument_group("context and batch")
    batch.add_argument(
        "--max-model-len",
        type=whole(1),
        metavar="TOKENS",
        help="tokens of prompt and answer together (default: what the checkpoint declares)",
    )
    batch.add_argument(
        "--max-num-seqs",
        type=whole(1, 4096),
        default=DEFAULTS.scheduler.max_num_seqs,
        metavar="N",
        help=f"sequences decoded together (default: {DEFAULTS.scheduler.max_num_seqs})",
    )
    batch.add_argument(
        "--max-num-batched-tokens",
        type=whole(1),
        metavar="TOKENS",
        help=f"tokens of one step, prompts in chunks (default: {CPU_STEP_TOKENS} on a CPU, {CARD_TOKENS} on a GPU "
        f"of {CARD_GIB} GiB or more, {LARGE_CARD_TOKENS} from {LARGE_CARD_GIB} GiB on)",
    )
    batch.add_argument(
        "--decode-latency-ms",
        type=milliseconds,
        dest="decode_latency_seconds",
        default=DEFAULTS.scheduler.decode_latency_seconds,
        metavar="MS",
        help="what a step may take while sequences decode: prompts' chunks shrink to it; 0 lets them be whole "
        f"(default: {1000 * (DEFAULTS.scheduler.decode_latency_seconds or 0):.0f})",
    )
    batch.add_argument(
        "--speculative",
        choices=SPECULATIVE,
        default=DEFAULTS.scheduler.speculative,
        help="lookup: run what followed the newest tokens where they stood before, too, as far as that pays; answers "
        f"stay the same; off: no drafts (default: {DEFAULTS.scheduler.speculative})",
    )
    batch.add_argument(
        "--enable-chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run long prompts in chunks, beside sequences that decode; it cannot be turned off (default: on)",
    )


def _add_cache_options(parser: argparse.ArgumentParser) -> None:
    cache = parser.add_argument_group("KV cache")
    cache.add_argument(
        "--prefix-cache",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.cache.prefix_cache,
        help="let requests that begin alike share the KV blocks of their beginning (default: on)",
    )
    cache.add_argument(
        "--state-cache-gib",
        type=gibibytes,
        dest="state_cache_bytes",
        metavar="GIB",
        help="GiB at most for states of linear attention that the prefix cache keeps; 0: models with such layers share "
        f"nothing (default: {100 * STATE_CACHE_SHARE:.0f} %% of the KV cache, and room for one)",
    )
    cache.add_argument(
        "--block-size",
        type=int,
        choices=BLOCK_SIZES,
        default=DEFAULTS.cache.block_size,
        help=f"tokens of a KV block (default: {DEFAULTS.cache.block_size})",
    )
    cache.add_argument(
        "--num-kv-tokens",
        type=whole(1),
        metavar="TOKENS",
        help="tokens that the KV cache holds (default: what the memory leaves)",
    )


def _add_http_options(parser: argparse.ArgumentParser) -> None:
    http = parser.add_argument_group("HTTP")
    http.add_argument(
        "--host", default=DEFAULT_HOST, help=f"address to listen on (default: {DEFAULT_HOST}, this machine only)"
    )
    http.add_argument(
        "--port",
        type=whole(0, 65535),
        default=DEFAULT_PORT,
        help=f"port to listen on; 0 takes a free one (default: {DEFAULT_PORT})",
    )
    http.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys that requests must have, one a line; read again when it changes (default: none is needed)",
    )
    http.add_argument(
        "--allowed-origins",
        type=origins,
        default=(),
        metavar="ORIGIN,...",
        help="pages that browsers let use the server, like https://chat.example; * is all (default: none)",
    )
    http.add_argument(
        "--max-waiting",
        type=whole(0),
        default=DEFAULTS.scheduler.max_waiting,
        metavar="N",
        help=f"requests that may queue; more are answered 429 (default: {DEFAULTS.scheduler.max_waiting})",
    )
    http.add_argument(
        "--grace-seconds",
        type=whole(0, 3600),
        default=25,
        metavar="S",
        help="seconds that requests in flight have to end when the server stops (default: 25)",
    )
    http.add_argument(
        "--access-log",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="log a line for each request: times and tokens, never a prompt, an answer or a key (default: on)",
    )
    http.add_argument(
        OPTION,
        type=receiver,
        metavar="URL",
        help="send a trace of each request to this receiver of OTLP over HTTP, like http://127.0.0.1:4318; "
        f"needs the extra 'otel' (default: what {ENDPOINTS[1]} says, else none)",
    )
    http.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="how much is logged; prompts never are (default: info)",
    )


def _add_api_options(parser: argparse.ArgumentParser) -> None:
    api = parser.add_argument_group("API")
    api.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="name that requests use; may be given several times (default: from MODEL)",
    )
    api.add_argument(
        "--tool-call-parser",
        choices=("auto", "none", *TOOL_FORMATS),
        default="auto",
        help="how the model writes calls of tools (default: auto, as its chat template shows)",
    )
    api.add_argument(
        "--reasoning-parser",
        choices=("auto", "none", *REASONING_FORMATS),
        default="auto",
        help="how the model writes its reasoning (default: auto, likewise)",
    )


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """The settings on `strata serve`'s command line. Raises OptionError for those that are not served."""
    if not arguments.enable_chunked_prefill:
        raise OptionError(
            "--no-enable-chunked-prefill is not served: a prompt that runs in one piece holds up every answer; where "
            "that is wanted, set --max-num-batched-tokens to --max-model-len, and --decode-latency-ms to 0"
        )
    return EngineConfig(
        model=source(arguments),
        dtype=arguments.dtype,
        device=replace(device_config(arguments), gpu_memory_utilization=arguments.gpu_memory_utilization),
        cache=CacheConfig(
            block_size=arguments.block_size,
            num_kv_tokens=arguments.num_kv_tokens,
            prefix_cache=arguments.prefix_cache,
            state_cache_bytes=arguments.state_cache_bytes,
        ),
        scheduler=SchedulerConfig(
            max_model_len=arguments.max_model_len,
            max_num_seqs=arguments.max_num_seqs,
            max_num_batched_tokens=arguments.max_num_batched_tokens,
            max_waiting=arguments.max_waiting,
            decode_latency_seconds=arguments.decode_latency_seconds,
            speculative=arguments.speculative,
        ),
    )
