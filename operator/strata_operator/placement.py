"""Where a model's pods may run: node affinity and tolerations that follow from its hardware."""

from __future__ import annotations

from typing import Any

from strata_operator.api.hardware import Hardware
from strata_operator.api.scheduling import Scheduling

# What GPU Feature Discovery writes. Time-sliced cards ("-SHARED") are left out on purpose: their memory is shared with
# pods that nobody here knows of, so no budget would hold.
PRODUCT_LABEL = "nvidia.com/gpu.product"
PRODUCTS = {
    "RTX3090": "NVIDIA-GeForce-RTX-3090",
    "RTX3090Ti": "NVIDIA-GeForce-RTX-3090-Ti",
    "RTX4090": "NVIDIA-GeForce-RTX-4090",
    "RTX4090D": "NVIDIA-GeForce-RTX-4090-D",
}
GPU_RESOURCE = "nvidia.com/gpu"


def products(hardware: Hardware) -> list[str]:
    """The node label's values that fit, in the user's order."""
    return [PRODUCTS[gpu] for gpu in hardware.gpus]


def affinity(hardware: Hardware) -> dict[str, Any]:
    """A GPU model requires one of the named cards; a CPU model prefers to leave GPU nodes to those that need them."""
    if hardware.accelerator == "nvidia":
        named = {"key": PRODUCT_LABEL, "operator": "In", "values": products(hardware)}
        node: dict[str, Any] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [named]}]},
        }
    else:
        without = {"key": PRODUCT_LABEL, "operator": "DoesNotExist"}
        node = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "preference": {"matchExpressions": [without]}}
            ],
        }
    return {"nodeAffinity": node}


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
    if hardware.accelerator == "cpu":
        return f"a node with cpu {hardware.cpu} and memory {hardware.memory} free"
    cards = " or ".join(products(hardware))
    return (
        f"a node labelled {PRODUCT_LABEL} {cards} with {GPU_RESOURCE} {hardware.count}, cpu {hardware.cpu} and "
        f"memory {hardware.memory} free"
    )
