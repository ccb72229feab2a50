"""The command ``strata-agent``: options and exit codes. Its help needs none of the agent's requirements."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import strata_operator
from strata_operator.agent.errors import HardwareError
from strata_operator.api.errors import ApiError, InvalidSpecError

if TYPE_CHECKING:
    from strata_operator.agent.hardware import Gpus, Host
    from strata_operator.cluster.client import Client

log = logging.getLogger(__name__)

INSTALL_HINT = "pip install '.[operator]' in a checkout of Strata, or 'PATH.whl[operator]' with its wheel"
STOP_SECONDS = 20.0

_ABOUT = """\
The node agent of Strata: it tells the cluster what the GPUs and the host of one node are (resource StrataNode), gives
them the power limits, clocks and huge pages that the models on the node want, watches over their health, and exports
metrics. What it changes it first writes down, and puts back when the last model leaves.
"""
_EXAMPLES = """\
examples:
  strata-agent show                    what this node has; changes nothing, needs no cluster
  strata-agent run --node gpu-1        what the DaemonSet runs
  strata-agent restore --node gpu-1    give every setting its original value back, and leave it so
  kubectl patch stratanode gpu-1 --type merge -p '{"spec": {"suspend": false}}'     tune it again afterwards
  strata-agent run --node kind-worker --fake cards.yaml     on a cluster without cards, for trying out
"""


def parser() -> argparse.ArgumentParser:
    """Options of ``strata-agent``."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        prog="strata-agent", description=_ABOUT, epilog=_EXAMPLES, formatter_class=raw, allow_abbrev=False
    )
    made.add_argument("--version", action="version", version=strata_operator.__version__)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    hardware = argparse.ArgumentParser(add_help=False)
    hardware.add_argument("--fake", type=Path, metavar="FILE", help="cards and host as this YAML file says, none real")
    node = argparse.ArgumentParser(add_help=False)
    node.add_argument("--node", default=os.environ.get("NODE_NAME"), help="the Node's name (default: $NODE_NAME)")

    def add(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common, *parents], allow_abbrev=False)

    run = add("run", "watch over this node until SIGTERM; settings stay as they are then", hardware, node)
    run.add_argument("--listen", default="0.0.0.0:8080", metavar="ADDRESS:PORT", help="of /healthz, /readyz, /metrics")
    add("restore", "give every setting of this node its original value back, and suspend the agent", hardware, node)
    add("show", "print what this node has; changes nothing, and needs no cluster", hardware)
    gone = add("uninstall", "restore all nodes, then end the agents and delete the StrataNodes; run by the chart")
    gone.add_argument("--daemonset", required=True, metavar="NAMESPACE/NAME", help="of the agents")
    gone.add_argument("--keep-going", action="store_true", help="exit code 0 although a node could not be restored")
    gone.add_argument("--timeout", type=int, default=120, metavar="SECONDS", help="for all nodes (default: 120)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where something could not be given back, 2 for what somebody has to mend first."""
    options = parser().parse_args(argv)
    logging.basicConfig(
        level=options.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stdout
    )
    if getattr(options, "node", "given") is None:
        parser().error("--node is needed, or NODE_NAME in the environment: the name of the Node this runs on")
    try:
        return {"run": _run, "restore": _restore, "show": _show, "uninstall": _uninstall}[options.command](options)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("strata"):
            raise
        parser().error(f"{error.name} is not installed; the agent needs: {INSTALL_HINT}")
    except (ApiError, InvalidSpecError, HardwareError) as error:
        log.error("%s", error)
        return 2


def _run(options: argparse.Namespace) -> int:
    from strata_operator.agent.process import Process, serve

    address, colon, port = options.listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        parser().error(f"--listen is {options.listen!r}; ADDRESS:PORT is needed, e.g. 0.0.0.0:8080")
    gpus, host = hardware(options.fake)
    process = Process(gpus, host, options.node, client)
    try:
        server = serve(process, address, int(port))
    except OSError as error:
        parser().error(f"--listen {options.listen}: {error.strerror}")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    process.start()
    ended.wait()
    if not process.stop(STOP_SECONDS):
        log.warning("a turn was still under way after %s s; the next process goes on from there", STOP_SECONDS)
    server.shutdown()
    return 0


def _restore(options: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from strata_operator.agent.agent import Agent
    from strata_operator.agent.mirror import Mirror
    from strata_operator.agent.restore import restore_here

    gpus, host = hardware(options.fake)
    mirror = Mirror(client(_uncounted), options.node)
    agent = Agent(gpus, host, mirror, monotonic=time.monotonic, wall=lambda: datetime.now(UTC))
    return _tell({options.node: restore_here(mirror, agent, _pause)})


def _show(options: argparse.Namespace) -> int:
    from strata_operator.agent.show import lines

    for line in lines(*hardware(options.fake)):
        sys.stdout.write(f"{line}\n")
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    from strata_operator.agent.restore import uninstall

    namespace, slash, name = options.daemonset.partition("/")
    if not slash or not namespace or not name:
        parser().error(f"--daemonset is {options.daemonset!r}; NAMESPACE/NAME is needed")
    end = time.monotonic() + options.timeout
    left = uninstall(client(_uncounted), namespace, name, has_time=lambda: time.monotonic() < end, pause=_pause)
    code = _tell(left)
    return 0 if options.keep_going else code


def hardware(fake: Path | None) -> tuple[Gpus, Host]:
    """This node's cards and host; or those of ``fake``, which is said loudly. Raises InvalidSpecError."""
    from strata_operator.agent import copies
    from strata_operator.agent.nvml import NvmlGpus, load_library
    from strata_operator.agent.sysfs import Sysfs
    from strata_operator.agent.watchdog import WatchedGpus

    if fake is None:
        return WatchedGpus(NvmlGpus(load_library(), copies.measure)), Sysfs()
    from strata_operator.agent.fake import gpus_of
    from strata_operator.agent.fake_file import FakeFile

    log.warning("=== FAKE === cards and host are those of %s; nothing real is read or set === FAKE ===", fake)
    made = FakeFile(fake, Path(tempfile.mkdtemp(prefix="strata-agent-fake-")))
    return WatchedGpus(gpus_of(made.driver)), made.host


def client(on_request: Callable[[str, int], None]) -> Client:
    """Raises ApiError where there are no credentials."""
    from strata_operator.cluster.client import Client, configuration

    return Client(configuration(), on_request=on_request, threads=4)


def _uncounted(verb: str, status: int) -> None:
    return None


def _pause() -> None:
    time.sleep(1.0)


def _tell(left: dict[str, list[str]]) -> int:
    for node, what in left.items():
        if what:
            log.error("%s: not given back: %s; its StrataNode keeps the original values", node, ", ".join(what))
    if any(left.values()):
        return 1
    log.info("every setting has its original value")
    return 0


if __name__ == "__main__":
    sys.exit(main())
