"""Where a model's pods may run: node affinity and tolerations that follow from its hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from strata_operator.api.hardware import Hardware
from strata_operator.api.names import GPU_RESOURCE
from strata_operator.api.node import (
    GPU_PRODUCT_LABEL,
    PCIE_GENERATION_LABEL,
    PCIE_WIDTH_LABEL,
    VRAM_LABEL,
    product_label,
)
from strata_operator.api.scheduling import Scheduling

# What GPU Feature Discovery writes. Time-sliced cards ("-SHARED") are left out on purpose: their memory is shared with
# pods that nobody here knows of, so no budget would hold.
PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"  # MiB
PRODUCTS = {
    "RTX3090": "NVIDIA-GeForce-RTX-3090",
    "RTX3090Ti": "NVIDIA-GeForce-RTX-3090-Ti",
    "RTX4090": "NVIDIA-GeForce-RTX-4090",
    "RTX4090D": "NVIDIA-GeForce-RTX-4090-D",
}

Expression = dict[str, Any]


def with_vram(hardware: Hardware, vram_gib: int | None) -> Hardware:
    """The hardware with a card of no less than so many GiB."""
    least = max(hardware.min_vram_gib or 0, vram_gib or 0)
    return replace(hardware, min_vram_gib=least or None)


def products(hardware: Hardware) -> list[str]:
    """The node label's values that fit, in the user's order."""
    return [PRODUCTS[gpu] for gpu in hardware.gpus]


def affinity(hardware: Hardware, prefer: Sequence[str] = ()) -> dict[str, Any]:
    """A GPU model requires one of the named cards; a CPU model prefers to leave GPU nodes to those that need them.

    ``prefer``: nodes by their names, which come second to that.
    """
    if hardware.accelerator == "nvidia":
        terms = [{"matchExpressions": expressions} for expressions in _card_terms(hardware)]
        node: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    else:
        without = [{"key": label, "operator": "DoesNotExist"} for label in (PRODUCT_LABEL, GPU_PRODUCT_LABEL)]
        node = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "preference": {"matchExpressions": without}}
            ],
        }
    named = [
        {"weight": 50, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}}
        for name in prefer
    ]
    if named:
        node["preferredDuringSchedulingIgnoredDuringExecution"] = [
            *node.get("preferredDuringSchedulingIgnoredDuringExecution", ()),
            *named,
        ]
    return {"nodeAffinity": node}


def _card_terms(hardware: Hardware) -> list[list[Expression]]:
    """Sets of labels, any of which will do: what the node's agent writes, and what GPU Feature Discovery does.

    The latter knows a card's memory, but no PCIe link.
    """
    names, link = products(hardware), hardware.min_pcie
    terms = [
        [
            {"key": GPU_PRODUCT_LABEL, "operator": "In", "values": _with_mixes(names)},
            *_at_least(VRAM_LABEL, hardware.min_vram_gib),
            *_at_least(PCIE_GENERATION_LABEL, link.generation),
            *_at_least(PCIE_WIDTH_LABEL, link.width),
        ]
    ]
    if link.generation is None and link.width is None:
        # Half a GiB less: an RTX 4090 has 24564 MiB.
        mib = None if hardware.min_vram_gib is None else hardware.min_vram_gib * 1024 - 512
        terms.append([{"key": PRODUCT_LABEL, "operator": "In", "values": names}, *_at_least(MEMORY_LABEL, mib)])
    return terms


def _with_mixes(names: Sequence[str]) -> list[str]:
    """The agent's labels of nodes with those cards and no others."""
    mixes = (mix for size in range(1, len(names) + 1) for mix in combinations(names, size))
    return [label for mix in mixes if (label := product_label(mix)) is not None]


def _at_least(label: str, number: int | None) -> list[Expression]:
    return [] if number is None else [{"key": label, "operator": "Gt", "values": [str(number - 1)]}]


def tolerations(hardware: Hardware, scheduling: Scheduling) -> list[dict[str, Any]]:
    """The user's own, and for a GPU model the taint that GPU nodes customarily bear."""
    given = [
        {
            key: value
            for key, value in {
                "key": one.key,
                "operator": one.operator,
                "value": one.value,
                "effect": one.effect,
                "tolerationSeconds": one.toleration_seconds,
            }.items()
            if value is not None
        }
        for one in scheduling.tolerations
    ]
    if hardware.accelerator == "nvidia":
        given.append({"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"})
    return given


def needs(hardware: Hardware) -> str:
    """The placement in words, for conditions."""
    own = f"cpu {hardware.cpu} and memory {hardware.memory} free"
    if hardware.accelerator == "cpu":
        return f"a node with {own}"
    card = " or ".join(products(hardware))
    if hardware.min_vram_gib is not None:
        card += f" of {hardware.min_vram_gib} GiB"
    link, labels = hardware.min_pcie, [GPU_PRODUCT_LABEL, PRODUCT_LABEL]
    if link.generation is not None or link.width is not None:
        labels.remove(PRODUCT_LABEL)  # who sets it knows no link, see ``_card_terms``
        generation = f"generation {link.generation}" if link.generation is not None else ""
        width = f"{link.width} lanes" if link.width is not None else ""
        card += f" at PCIe {' with '.join(filter(None, (generation, width)))}"
    return f"a node with {GPU_RESOURCE} {hardware.count}, labelled {' or '.join(labels)} {card}, {own}"
