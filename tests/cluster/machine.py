"""The machine that the cluster believes to run on: a network and a mount namespace, held by one sleeping process.

Its /run, /var/lib and /var/log are its own, so that programs may write to their usual places and nothing of it stays.
Nothing about it is written down: the kernel removes both namespaces, the link and its route when the last process ends.

    this machine                              the cluster's
    strataN 10.X.255.1 ────────────────── uplink 10.X.255.2   (API server, registry, DNS, node)
    route 10.X.0.0/16 via 10.X.255.2          pods 10.X.64.0/20, Services 10.X.0.0/18
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path

from tests.cluster import processes
from tests.cluster.errors import CommandError, StartError
from tests.cluster.instance import Instance, Network, candidates
from tests.cluster.parts import cache_root
from tests.cluster.shell import run

ROLE = "machine"
# Where the cluster's processes find their files, whatever these are called outside.
STATE = Path("/run/strata/state")
CACHE = Path("/run/strata/cache")
_READY = Path("/run/strata/ready")
_INSIDE = "uplink"

# Folders are opened before others are mounted over them: state and cache may well lie below /var/lib.
_SETUP = f"""
set -eu
exec 3<"$1" 4<"$2"
mount --make-rshared /
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/lock {STATE} {CACHE}
mount --no-canonicalize --bind /proc/self/fd/3 {STATE}
mount --no-canonicalize --bind /proc/self/fd/4 {CACHE}
exec 3<&- 4<&-
mkdir -p {STATE}/lib {STATE}/varlog
mount --bind {STATE}/lib /var/lib
mount --bind {STATE}/varlog /var/log
echo 1 > /proc/sys/net/ipv4/ip_forward
touch {_READY}
cd /
exec sleep infinity
"""


def start(instance: Instance) -> None:
    """Makes the namespaces. Mounts of this machine stay visible inside; what is mounted inside stays there."""
    script = ["sh", "-c", _SETUP, "strata-machine", str(instance.state), str(cache_root())]
    _launch(instance, ROLE, ["unshare", "--net", "--mount", "--propagation", "slave", *script])
    processes.wait_until(lambda: _is_ready(instance), 20, "the cluster's namespaces", instance=instance, roles=[ROLE])


def connect(instance: Instance) -> Network:
    """Links the namespace to this machine. The kernel lets only one cluster have an interface's name, hence a slot."""
    holder = _holder(instance)
    for network in candidates(routes()):
        try:
            peer = ("peer", "name", _INSIDE, "netns", str(holder.pid))
            run(["ip", "link", "add", network.interface, "type", "veth", *peer])
        except CommandError as error:
            if "File exists" in str(error):
                continue
            raise
        break
    else:
        raise StartError(
            f"no free block of addresses among {Network(0).block} to {Network(Network.SLOTS[-1]).block}: "
            "each holds a route of this machine already (`ip route`)"
        )
    run(["ip", "address", "add", f"{network.host}/{network.link.prefixlen}", "dev", network.interface])
    run(["ip", "link", "set", network.interface, "up"])
    inside = f"""
ip address add $1 dev {_INSIDE}
ip link set lo up
ip link set {_INSIDE} up
ip route add default via $2
"""
    enter(instance, ["sh", "-ec", inside, "link", f"{network.node}/{network.link.prefixlen}", str(network.host)])
    run(["ip", "route", "add", str(network.block), "via", str(network.node)])
    return network


def disconnect(instance: Instance) -> None:
    """Takes the link away now; left alone, it would vanish some instants after the last process.

    From the inside, where no other cluster's link can be meant.
    """
    if _is_ready(instance):
        with suppress(CommandError):  # the last attempt to start did not come so far as to have one
            enter(instance, ["ip", "link", "delete", _INSIDE])


def routes() -> list[IPv4Network]:
    """What this machine's routing tables lead to."""
    shown = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]")
    return [
        IPv4Network(route["dst"], strict=False)
        for route in shown
        if route.get("dst", "default") != "default" and route.get("type", "unicast") == "unicast"
    ]


def spawn(instance: Instance, role: str, command: Sequence[str | Path], extra: dict[str, str]) -> None:
    """Starts a process that stays, in the cluster's namespaces."""
    _launch(instance, role, [*_nsenter(instance), *map(str, command)], extra)


def enter(instance: Instance, command: Sequence[str | Path], stdin: bytes | None = None) -> str:
    """Runs a command in the cluster's namespaces; what it printed."""
    return run([*_nsenter(instance), *command], input=stdin)


def _launch(instance: Instance, role: str, command: list[str], extra: dict[str, str] | None = None) -> None:
    log = instance.log(role)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        # --fork: it becomes a child of init, so that nobody has to stay to bury it.
        subprocess.run(
            ["setsid", "--fork", *command],
            env=processes.environment(instance, role, path=[]) | (extra or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            check=True,
        )


def _nsenter(instance: Instance) -> list[str]:
    # Not `ip netns exec`: that mounts a new /sys, which hides the control groups from the kubelet.
    return ["nsenter", "--target", str(_holder(instance).pid), "--net", "--mount"]


def _holder(instance: Instance) -> processes.Process:
    holder = processes.main_process(instance, ROLE)
    if holder is None:
        raise StartError(f"cluster {instance.name} is not up: nobody holds its namespaces")
    return holder


def _is_ready(instance: Instance) -> bool:
    holder = processes.main_process(instance, ROLE)
    return holder is not None and Path(f"/proc/{holder.pid}/root", *_READY.parts[1:]).exists()
