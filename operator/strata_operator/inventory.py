"""Which cards of which nodes a model may run on, by what the nodes' agents tell; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strata_operator.api.hardware import Hardware
from strata_operator.api.node import Gpu, StrataNode, product_label
from strata_operator.placement import products

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, and the card of it that has the least memory: which one a pod gets nobody says."""

    node: StrataNode
    gpu: Gpu

    @property
    def host_bytes(self) -> int | None:
        """Memory that all pods of the node together may have; None where the agent does not tell."""
        host = self.node.status.host
        if host is None:
            return None
        return min(host.memory_bytes, host.pods_memory_bytes or host.memory_bytes)


def candidates(hardware: Hardware, nodes: Iterable[StrataNode]) -> tuple[Candidate, ...]:
    """Nodes of which every card satisfies the spec, in the order of their names: a pod may get any, and the agent's
    labels, by which it is placed, tell what is true of all. A node that is not healthy is none."""
    found = []
    for node in sorted(nodes, key=lambda one: one.name):
        cards = node.status.gpus
        is_labelled = product_label(gpu.product for gpu in cards) is not None
        if cards and node.is_healthy and is_labelled and all(unmet(hardware, gpu) is None for gpu in cards):
            found.append(Candidate(node, min(cards, key=lambda gpu: (gpu.vram_bytes, gpu.uuid))))
    return tuple(found)


def unmet(hardware: Hardware, gpu: Gpu) -> tuple[int, str] | None:
    """What of the spec a card does not satisfy: how far it is from that, and in few words; None: it will do."""
    if gpu.product not in products(hardware):
        return 3, "another card"
    if gib(gpu.vram_bytes) < (hardware.min_vram_gib or 0):
        return 2, f"{gib(gpu.vram_bytes)} GiB of VRAM"
    link = gpu.pcie
    if hardware.min_pcie.generation and (link.max_generation or 0) < hardware.min_pcie.generation:
        return 1, f"PCIe generation {link.max_generation or 'unknown'}"
    if hardware.min_pcie.width and (link.max_width or 0) < hardware.min_pcie.width:
        return 1, f"{link.max_width or 'unknown number of'} PCIe lanes"
    return None


def gib(size: int) -> int:
    """To the nearest GiB, as people call cards: NVML counts some MiB less than 24 GiB on an RTX 4090."""
    return (size + GIB // 2) // GIB


def describe(nodes: Iterable[StrataNode], hardware: Hardware, limit: int = 8) -> str:
    """What there is instead of what the spec wants, node by node; the one that comes closest first."""
    told = []
    for node in sorted(nodes, key=lambda one: (*_distance(one, hardware), one.name)):
        lacks = [unmet(hardware, gpu) for gpu in node.status.gpus]
        words = ["fit" if lack is None else lack[1] for lack in lacks]
        cards = sorted({f"{gpu.product} ({word})" for gpu, word in zip(node.status.gpus, words, strict=True)})
        state = ", of which a pod may get any" if any(lacks) and not all(lacks) else ""
        if product_label(gpu.product for gpu in node.status.gpus) is None:
            state += ", more kinds than its label can name"
        state += "" if node.is_healthy else ", not healthy"
        told.append(f"{node.name} has {', '.join(cards) or 'no card'}{state}")
    rest = [f"and {len(told) - limit} more"] if len(told) > limit else []
    return "; ".join([*told[:limit], *rest])


def _distance(node: StrataNode, hardware: Hardware) -> tuple[int, int]:
    """By the worst of its cards, for a pod may get any; among those that lack the same, by VRAM."""
    steps = [lack[0] if lack is not None else 0 for lack in (unmet(hardware, gpu) for gpu in node.status.gpus)]
    return max(steps, default=4), -min((gpu.vram_bytes for gpu in node.status.gpus), default=0)
