"""`strata serve`: a model behind the OpenAI API."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import json
import logging
import os
import socket
from pathlib import PurePath
from typing import TYPE_CHECKING

from strata.bench.serve.address import API_KEY, DEFAULT_URL
from strata.cli.arguments import require
from strata.cli.serve_options import add_options, engine_config
from strata.cli.traces import tracing
from strata.config import EngineConfig
from strata.config.model_name import BuiltinName, HubName, LocalName, UrlName, parse_name
from strata.engine import logs
from strata.errors import OptionError

if TYPE_CHECKING:
    from strata.server.app import Access
    from strata.server.keys import ApiKeys
    from strata.server.middleware import Observer
    from strata.server.service import Service
    from strata.server.tracing import Tracing

logger = logging.getLogger(__name__)

TRIAL = "Why is the sky blue?"

EPILOG = """examples:
  strata serve builtin://smollm2-135m
  strata serve Qwen/Qwen3-8B --dtype int4
  strata serve /models/qwen3-30b-a3b --dtype int4 --max-model-len 8192 --port 8080
  strata serve model.gguf --served-model-name my-model --host 0.0.0.0

Stops at SIGTERM or Ctrl-C: requests in flight may end first; a second signal ends at once. The exit code is 0, and 130
where Ctrl-C comes before the model is loaded.
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
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Bind the port, look for the model, then start the engine: what is wrong with either is known at once."""
    config = engine_config(arguments)
    require()

    from strata.store.locate import check_source

    keys = _api_keys(arguments)
    traces = tracing(arguments.otlp_endpoint)
    with listen(arguments.host, arguments.port) as listener:
        logs.configure(arguments.log_level.upper())
        if arguments.log_level != "debug":
            logging.getLogger("uvicorn").setLevel(logging.WARNING)

        check_source(config.model)
        access = access_through(listener, keys, arguments.allowed_origins)

        import uvloop

        try:
            if uvloop.run(_serve(config, arguments, listener, access, traces)):
                raise KeyboardInterrupt
        finally:
            if traces is not None:
                traces.close()
    return 0


def _api_keys(arguments: argparse.Namespace) -> ApiKeys | None:
    from strata.server.keys import ApiKeys

    return None if arguments.api_key_file is None else ApiKeys(arguments.api_key_file)


def access_through(listener: socket.socket, api_keys: ApiKeys | None, allowed_origins: tuple[str, ...]) -> Access:
    """Who may use a server that listens there. Logs that it is for everybody, where other machines reach it and no key
    is asked for."""
    from strata.server.app import Access

    host, port = listener.getsockname()[:2]
    is_local = ipaddress.ip_address(host).is_loopback
    if api_keys is None and not is_local:
        logger.warning(
            "whoever reaches port %d on %s may use the model; --api-key-file FILE lets in only who has a key",
            port,
            host,
        )
    return Access(api_keys, allowed_origins, is_local)


async def _serve(
    config: EngineConfig,
    arguments: argparse.Namespace,
    listener: socket.socket,
    access: Access,
    traces: Tracing | None,
) -> bool:
    """Returns whether it was interrupted before it served."""
    from strata.cli.progress import ProgressBar
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
    progress = ProgressBar()

    def on_progress(state: LoadProgress | None) -> None:
        if state is not None:
            progress(state.phase, state.bytes_done, state.bytes_total)

    def on_ready() -> None:
        progress.close()
        print(ready_message(service, listener, needs_key=access.api_keys is not None), flush=True)

    try:
        return await run_server(
            service,
            listener,
            access=access,
            observers=observers(arguments.access_log, traces),
            grace_seconds=arguments.grace_seconds,
            on_progress=on_progress,
            on_ready=on_ready,
        )
    finally:
        progress.close()


def observers(access_log: bool, traces: Tracing | None) -> tuple[Observer, ...]:
    """Who sees each request when it has ended."""
    from strata.server.access_log import log_access

    return (*((log_access,) if access_log else ()), *((traces,) if traces is not None else ()))


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
    """A Hub repository's or a built-in model's name, or the last part of a path without ``.gguf``."""
    match parse_name(model):
        case HubName(repo=repo):
            return repo
        case BuiltinName(name=name):
            return name
        case UrlName(file=file):
            return file.removesuffix(".gguf")
        case LocalName(path=path):
            return PurePath(path).name.removesuffix(".gguf") or path


def ready_message(service: Service, listener: socket.socket, *, needs_key: bool) -> str:
    """Where the server is, and three ways to try it."""
    host, port = listener.getsockname()[:2]
    # A wildcard address listens everywhere, but is no place to connect to.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104  not bound
    url = f"http://{host}:{port}"
    ready = service.backend.engine.ready
    how = f" ({ready.dtype}, {ready.device}, {ready.max_model_len} tokens of context)" if ready is not None else ""
    option = "" if url == DEFAULT_URL else f" --url {url}"
    message = json.dumps({"messages": [{"role": "user", "content": TRIAL}]})
    variable, header = (f"{API_KEY}=KEY ", " -H 'Authorization: Bearer KEY'") if needs_key else ("", "")
    return (
        f"Strata serves {', '.join(service.model_names)}{how} at {url}\n"
        f"  try: {url} in a browser\n"
        f'  or:  {variable}strata chat{option} "{TRIAL}"\n'
        f"  or:  curl {url}/v1/chat/completions{header} -d '{message}'"
    )
