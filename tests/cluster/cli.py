"""The command line: `python3 -m tests.cluster`, from the repository's root."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster import processes
from tests.cluster.build import build, clean
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.instance import DEFAULT_NAME, Instance, state_root
from tests.cluster.lifecycle import tear_down
from tests.cluster.parts import PARTS, part


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    # What follows `kubectl` is kubectl's, options too.
    own = arguments.index("kubectl") + 1 if "kubectl" in arguments else len(arguments)
    options = _parser().parse_args(arguments[:own])
    options.arguments = arguments[own:]
    command: Callable[[argparse.Namespace], None] = options.run
    # Asked to end, it takes the compiler with it, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        command(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.cluster", description="A real Kubernetes cluster on this machine."
    )
    parser.add_argument(
        "--name", default=os.environ.get("STRATA_CLUSTER", DEFAULT_NAME), help="which cluster (default: %(default)s)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    command("build", _build, "build parts, or take them from the cache").add_argument(
        "parts", nargs="*", help="which (default: all that `up` needs)"
    )
    command("up", _up, "start the cluster").add_argument(
        "--kwok", action="store_true", help="with kwok, for pretend nodes"
    )
    command("down", _down, "stop it and leave nothing behind").add_argument(
        "--purge", action="store_true", help="forget the images pushed to it, too"
    )
    command("status", _status, "show every cluster's processes and addresses")
    command("kubectl", _kubectl, "run the cluster's kubectl with all arguments that follow")
    command("env", _env, 'print shell variables: eval "$(python3 -m tests.cluster env)"')
    logs = command("logs", _logs, "print the end of a process' log")
    logs.add_argument("process")
    logs.add_argument("--lines", type=int, default=50)
    command("restart", _restart, "stop one process and start it again").add_argument("process")
    command("load-image", _load_image, "import an OCI or docker archive into the node").add_argument(
        "archive", type=Path
    )

    gpu = argparse.ArgumentParser(add_help=False)
    gpu.add_argument("--product", default="NVIDIA-GeForce-RTX-3090")
    gpu.add_argument("--vram-mib", type=int, default=24576)
    gpu.add_argument("--count", type=int, default=1, help="GPUs in one node")
    for name, run, text in (
        ("add-gpu", _add_gpu, "pretend that the real node has GPUs"),
        ("add-gpu-nodes", _add_gpu_nodes, "add pretend nodes with GPUs"),
    ):
        added = commands.add_parser(name, help=text, description=text, parents=[gpu])
        added.set_defaults(run=run)
        if run is _add_gpu_nodes:
            added.add_argument("number", type=int)
    command("remove-gpu", _remove_gpu, "take the real node's pretend GPUs away")
    command("remove-gpu-nodes", _remove_gpu_nodes, "remove all pretend nodes")
    command("clean", _clean, "remove what other versions of the project left in the cache")
    return parser


def _build(options: argparse.Namespace) -> None:
    build([part(name) for name in options.parts] or [p for p in PARTS if not p.optional], say)


def _up(options: argparse.Namespace) -> None:
    cluster = Cluster.up(options.name, kwok=options.kwok)
    say(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")


def _down(options: argparse.Namespace) -> None:
    tear_down(Instance.named(options.name), purge=options.purge, report=say)
    say(f"cluster {options.name}: down")


def _status(_: argparse.Namespace) -> None:
    root = state_root()
    names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.exists() else []
    if not names:
        say("no cluster is up")
    for name in names:
        _show(name)


def _show(name: str) -> None:
    try:
        cluster = Cluster.attach(name)
    except ClusterError:
        say(f"cluster {name}: incomplete or stopped; `up` starts it anew, `down` clears it away")
        return
    say(f"cluster {name}\n  kubeconfig  {cluster.kubeconfig}\n  API server  {cluster.network.api_url}")
    say(f"  registry    {cluster.registry}\n  state       {cluster.instance.state}")
    running = {process.role: process for process in processes.find(cluster.instance) if process.is_main}
    for role in [service.role for service in cluster.services] + (["kwok"] if "kwok" in running else []):
        say(f"  {role:<24} {f'running, pid {running[role].pid}' if role in running else 'NOT RUNNING'}")
    try:
        nodes = cluster.kubectl("get", "nodes", "--request-timeout=5s")
    except ClusterError as error:
        nodes = str(error)
    say("".join(f"  {line}\n" for line in nodes.splitlines()[:20]).rstrip())


def _kubectl(options: argparse.Namespace) -> None:
    cluster = Cluster.attach(options.name)
    program = cluster.bin("kubectl")
    os.execve(program, [str(program), *options.arguments], cluster.env())


def _env(options: argparse.Namespace) -> None:
    cluster = Cluster.attach(options.name)
    for name, value in cluster.env().items():
        if os.environ.get(name) != value:
            say(f"export {name}={shlex.quote(value)}")


def _logs(options: argparse.Namespace) -> None:
    say(Cluster.attach(options.name).logs(options.process, options.lines))


def _restart(options: argparse.Namespace) -> None:
    Cluster.attach(options.name).restart(options.process)


def _load_image(options: argparse.Namespace) -> None:
    say(Cluster.attach(options.name).load_image(options.archive).rstrip())


def _add_gpu(options: argparse.Namespace) -> None:
    Cluster.attach(options.name).add_pretend_gpu(options.count, options.product, options.vram_mib)


def _remove_gpu(options: argparse.Namespace) -> None:
    Cluster.attach(options.name).remove_pretend_gpu()


def _add_gpu_nodes(options: argparse.Namespace) -> None:
    cluster = Cluster.attach(options.name)
    names = cluster.add_gpu_nodes(options.number, options.product, options.vram_mib, options.count)
    say(f"added {names[0]}" if len(names) == 1 else f"added {len(names)} nodes, {names[0]} to {names[-1]}")


def _remove_gpu_nodes(options: argparse.Namespace) -> None:
    Cluster.attach(options.name).remove_gpu_nodes()


def _clean(_: argparse.Namespace) -> None:
    gone = clean()
    say(f"removed {', '.join(gone)}" if gone else "nothing to remove")
