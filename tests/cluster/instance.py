"""One cluster's name, its files, and the block of addresses that it owns."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tests.cluster.errors import ClusterError

DEFAULT_NAME = "strata"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,28}[a-z0-9])?")


def state_root() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "strata" / "cluster"


@dataclass(frozen=True)
class Network:
    """A /16 of its own: Services, pods, and the link between this machine and the cluster's network namespace.

    Since every cluster has addresses of its own, all use the same, usual ports.
    """

    slot: int

    SLOTS = range(32)

    @property
    def block(self) -> IPv4Network:
        return IPv4Network(f"10.{96 + self.slot}.0.0/16")

    @property
    def services(self) -> IPv4Network:
        return next(self.block.subnets(new_prefix=18))

    @property
    def pods(self) -> IPv4Network:
        """Of the real node."""
        return IPv4Network((self.block[64 * 256], 20))

    @property
    def pretend_pods(self) -> IPv4Network:
        return IPv4Network((self.block[128 * 256], 18))

    @property
    def link(self) -> IPv4Network:
        return IPv4Network((self.block[255 * 256], 30))

    @property
    def host(self) -> IPv4Address:
        """This machine, as the cluster sees it."""
        return self.link[1]

    @property
    def node(self) -> IPv4Address:
        """The node, the API server, the registry and DNS."""
        return self.link[2]

    @property
    def interface(self) -> str:
        return f"strata{self.slot}"

    @property
    def api_url(self) -> str:
        return f"https://{self.node}:6443"

    @property
    def registry(self) -> str:
        return f"{self.node}:5000"


def candidates(routes: Iterable[IPv4Network]) -> Iterator[Network]:
    """Networks that this machine can take, best first.

    One that holds a route's destination is out of the question. One inside a wider route (a VPN to 10.0.0.0/8, say)
    hides a part of what is behind that route, so it comes after those that hide nothing.
    """
    routes = [route for route in routes if route.prefixlen > 0]
    possible = [
        network
        for network in map(Network, Network.SLOTS)
        if not any(route.subnet_of(network.block) for route in routes)
    ]
    yield from sorted(possible, key=lambda network: any(network.block.subnet_of(route) for route in routes))


@dataclass(frozen=True)
class Instance:
    """A cluster by name; `state` holds all that it keeps on disk and goes with it."""

    name: str
    state: Path

    @classmethod
    def named(cls, name: str = DEFAULT_NAME) -> Instance:
        if not _NAME.fullmatch(name):
            raise ClusterError(
                f"{name!r} cannot name a cluster: at most 30 lower-case letters, digits and dashes, a letter first"
            )
        return cls(name, state_root() / name)

    @property
    def lock(self) -> Path:
        return self.state.with_name(f"{self.name}.lock")

    @property
    def record(self) -> Path:
        return self.state / "instance.json"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def node(self) -> str:
        return f"{self.name}-node"

    @property
    def cgroup(self) -> str:
        """Differs between users who chose the same name: control groups belong to the whole machine."""
        return f"strata-{self.name}-{hashlib.sha256(str(self.state).encode()).hexdigest()[:6]}"

    def log(self, process: str) -> Path:
        return self.state / "logs" / f"{process}.log"
