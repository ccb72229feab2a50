"""`strata serve`: a model behind the OpenAI API."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import socket
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from strata.cli.arguments import milliseconds, origins, positive, require, share, whole
from strata.cli.options import DEFAULTS, add_device, add_dtype, add_revision, add_source, source
from strata.cli.published import add_published
from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.config.engine import BLOCK_SIZES
from strata.engine import logs
from strata.errors import OptionError
from strata.server.output.formats import REASONING_FORMATS, TOOL_FORMATS
from strata.store.sources.hub import HubName

if TYPE_CHECKING:
    from strata.server.app import Access
    from strata.server.service import Service

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_STALL_SECONDS = 300.0
NEEDED = (
    "torch",
    "huggingface_hub",
    "tokenizers",
    "llguidance",
    "jinja2",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "prometheus_client",
    "tqdm",
)

EPILOG = """examples:
  strata serve builtin://smollm2-135m
  strata serve Qwen/Qwen3-8B --dtype int4
  strata serve /models/qwen3-30b-a3b --dtype int4 --max-model-len 8192 --port 8080
  strata serve model.gguf --served-model-name my-model --host 0.0.0.0

Stops at SIGTERM or Ctrl-C: requests in flight may end first; a second signal ends at once.
With STRATA_TERMINATION_LOG=FILE the reason of a failed start is written there as well.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, in OpenAI's API",
        description="Serve a model over HTTP, in OpenAI's API: chat and text completions, streamed or not.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    add_source(parser, "MODEL", "--model")
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
        help="seconds that fetching, converting or loading may go on without a byte, before it ends as failed "
        f"(default: {DEFAULT_STALL_SECONDS:g})",
    )
    _add_batch_options(parser)
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
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="name that requests use; may be given several times (default: from MODEL)",
    )
    http.add_argument(
        "--tool-call-parser",
        choices=("auto", "none", *TOOL_FORMATS),
        default="auto",
        help="how the model writes calls of tools (default: auto, as its chat template shows)",
    )
    http.add_argument(
        "--reasoning-parser",
        choices=("auto", "none", *REASONING_FORMATS),
        default="auto",
        help="how the model writes its reasoning (default: auto, likewise)",
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
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="how much is logged; prompts never are (default: info)",
    )
    add_published(parser)


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
        default=DEFAULTS.scheduler.max_num_batched_tokens,
        metavar="TOKENS",
        help=f"tokens of one step, prompts in chunks (default: {DEFAULTS.scheduler.max_num_batched_tokens})",
    )
    batch.add_argument(
        "--decode-latency-ms",
        type=milliseconds,
        default=DEFAULTS.scheduler.decode_latency_seconds,
        metavar="MS",
        help="what a step may take while sequences decode: prompts' chunks shrink to it; 0 lets them be whole "
        f"(default: {1000 * (DEFAULTS.scheduler.decode_latency_seconds or 0):.0f})",
    )
    batch.add_argument(
        "--enable-chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run long prompts in chunks, beside sequences that decode; it cannot be turned off (default: on)",
    )
    batch.add_argument(
        "--prefix-cache",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.cache.prefix_cache,
        help="let requests that begin alike share the KV blocks of their beginning (default: on)",
    )
    batch.add_argument(
        "--block-size",
        type=int,
        choices=BLOCK_SIZES,
        default=DEFAULTS.cache.block_size,
        help=f"tokens of a KV block (default: {DEFAULTS.cache.block_size})",
    )
    batch.add_argument(
        "--num-kv-tokens",
        type=whole(1),
        metavar="TOKENS",
        help="tokens that the KV cache holds (default: what the memory leaves)",
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
        device=DeviceConfig(
            device=arguments.device,
            num_threads=arguments.threads,
            gpu_memory_utilization=arguments.gpu_memory_utilization,
        ),
        cache=CacheConfig(
            block_size=arguments.block_size,
            num_kv_tokens=arguments.num_kv_tokens,
            prefix_cache=arguments.prefix_cache,
        ),
        scheduler=SchedulerConfig(
            max_model_len=arguments.max_model_len,
            max_num_seqs=arguments.max_num_seqs,
            max_num_batched_tokens=arguments.max_num_batched_tokens,
            max_waiting=arguments.max_waiting,
            decode_latency_seconds=arguments.decode_latency_ms,
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Bind the port, then start the engine, so that a port in use is known before the model is loaded."""
    config = engine_config(arguments)
    require(*NEEDED)
    access = _access(arguments)
    with listen(arguments.host, arguments.port) as listener:
        logs.configure(arguments.log_level.upper())
        if arguments.log_level != "debug":
            logging.getLogger("uvicorn").setLevel(logging.WARNING)

        import uvloop

        uvloop.run(_serve(config, arguments, listener, access))
    return 0


def _access(arguments: argparse.Namespace) -> Access:
    from strata.server.app import Access
    from strata.server.keys import ApiKeys

    keys = None if arguments.api_key_file is None else ApiKeys(arguments.api_key_file)
    return Access(keys, arguments.allowed_origins)


async def _serve(config: EngineConfig, arguments: argparse.Namespace, listener: socket.socket, access: Access) -> None:
    from strata.cli.progress import Progress
    from strata.engine.client import EngineClient
    from strata.engine.messages import LoadProgress
    from strata.server.lifetime import run as run_server
    from strata.server.service import Service

    names = tuple(arguments.served_model_name or (default_name(config.model),))
    service = Service(
        EngineClient(config, stall_seconds=arguments.load_stall_seconds),
        model_names=names,
        tool_format=arguments.tool_call_parser,
        reasoning_format=arguments.reasoning_parser,
    )
    progress = Progress()

    def on_progress(state: LoadProgress | None) -> None:
        if state is not None:
            progress(state.phase, state.bytes_done, state.bytes_total)

    def on_ready() -> None:
        progress.close()
        print(ready_message(service, listener), flush=True)

    try:
        await run_server(
            service,
            listener,
            access=access,
            grace_seconds=arguments.grace_seconds,
            on_progress=on_progress,
            on_ready=on_ready,
        )
    finally:
        progress.close()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OptionError that says why there is none, and what to do."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason, advice = "is in use by another program", "end that, or choose another with --port (0: a free one)"
        elif error.errno == errno.EACCES:
            reason, advice = "is reserved", "choose one above 1023 with --port"
        else:
            why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            reason, advice = f"cannot be listened on ({why})", "choose an address of this machine with --host"
        raise OptionError(f"port {port} on {host} {reason}; {advice}") from error


def default_name(model: str) -> str:
    """A Hub repository's name, or the last part of a path or builtin:// address, without ``.gguf``."""
    hub = HubName.parse(model)
    if hub is not None:
        return hub.repo
    name = PurePath(model.removeprefix("builtin://")).name
    return name.removesuffix(".gguf") or model


def ready_message(service: Service, listener: socket.socket) -> str:
    """Where the server is, and two ways to try it."""
    host, port = listener.getsockname()[:2]
    # A wildcard address listens everywhere, but is no place to connect to.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{host}:{port}"
    ready = service.engine.ready
    how = f" ({ready.dtype}, {ready.device}, {ready.max_model_len} tokens of context)" if ready is not None else ""
    option = "" if url == f"http://{DEFAULT_HOST}:{DEFAULT_PORT}" else f" --url {url}"
    message = '{"messages": [{"role": "user", "content": "Hello"}]}'
    return (
        f"Strata serves {service.model_names[0]}{how} at {url}\n"
        f'  try: strata chat{option} "Hello"\n'
        f"  or:  curl {url}/v1/chat/completions -d '{message}'"
    )
