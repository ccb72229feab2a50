"""What describes one process of the cluster before it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.instance import Instance, Network
from tests.cluster.machine import CACHE, STATE
from tests.cluster.parts import binary

# For Go's programs: collecting garbage takes a seventh of the API server's CPU time otherwise.
RELAXED = {"GOGC": "400"}
PKI = STATE / "pki"
CONFIG = STATE / "config"


@dataclass(frozen=True)
class Service:
    """A process and the files that it reads; `role` is its program's name, its log's and the one people use."""

    role: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # name below CONFIG -> text
    grace_seconds: float = 10.0

    @property
    def command(self) -> tuple[str, ...]:
        return (str(inside(self.role)), *self.arguments)


@dataclass(frozen=True)
class Site:
    """What a service's description is made from."""

    instance: Instance
    network: Network


def inside(program: str) -> Path:
    """Where the cluster's processes find a built program."""
    path = binary(program)
    return CACHE / path.parent.name / path.name


def flags(**values: object) -> tuple[str, ...]:
    """flags(leader_elect=False) -> ("--leader-elect=false",)"""
    shown = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in shown.items())
