"""What a node lacks for a model, in numbers; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.plan.units import format_bytes
from strata_operator.api.hardware import Hardware
from strata_operator.inventory import Candidate

VRAM, HOST_MEMORY, CPUS = "VRAM", "host memory", "CPUs"
EXPERT_MEMORY = "host memory for experts"  # of the pod, whatever the node has
_REASONS = {VRAM: "NotEnoughVram", CPUS: "NotEnoughCpus"}


@dataclass(frozen=True, slots=True)
class Shortage:
    """How much of a resource is needed, and how much there is: bytes, or CPUs. ``advice`` may be empty."""

    resource: str
    needed: int
    available: int
    advice: str = ""

    def amount(self, number: int, *, is_needed: bool = False) -> str:
        """For people; what is needed shows as more than what there is, however close they are."""
        if self.resource == CPUS:
            return f"{number} {self.resource}"
        return f"{format_bytes(number, round_up=is_needed, round_down=not is_needed)} of {self.resource}"


def of_host(hardware: Hardware, one: Candidate) -> Shortage | None:
    """What the pod asks for beside the card, whatever it serves; None where the node has it."""
    memory = hardware.memory_bytes + hardware.hugepages_bytes
    if one.host_bytes is not None and memory > one.host_bytes:
        return Shortage(HOST_MEMORY, memory, one.host_bytes)
    host = one.node.status.host
    if host is not None and hardware.cpu > host.cores:
        return Shortage(CPUS, hardware.cpu, host.cores)
    return None


def explain(short: Sequence[tuple[Candidate, Shortage]]) -> tuple[str, str]:
    """The reason and the message for nodes of which each lacks something; the one that comes closest is named first,
    whatever it lacks."""
    best, lack = min(short, key=lambda pair: (-pair[1].available / pair[1].needed, pair[0].node.name))
    has = lack.amount(lack.available).removesuffix(f" of {lack.resource}")
    name = best.node.name
    where = f"the pod on {name}" if lack.resource == EXPERT_MEMORY else f"the best matching node, {name},"
    parts = [f"needs {lack.amount(lack.needed, is_needed=True)}; {where} has {has}"]
    others = sorted(f"{one.node.name} {other.amount(other.available)}" for one, other in short if one is not best)
    if others:
        parts.append(f"others: {listed(others)}")
    if lack.advice:
        parts.append(lack.advice)
    return _REASONS.get(lack.resource, "NotEnoughMemory"), ". ".join(parts)


def listed(names: Sequence[str], limit: int = 8) -> str:
    """The first ones, and how many more."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
