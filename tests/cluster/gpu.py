"""Pretend GPUs: what the scheduler and the operator see of them, without the hardware."""

from __future__ import annotations

import re
from typing import Any

from tests.cluster.api import Api
from tests.cluster.errors import ApiError, ClusterError

RESOURCE = "nvidia.com/gpu"
# In the product's name -> family and compute capability.
_FAMILIES = (
    ("RTX-20", "turing", "7", "5"),
    ("RTX-30", "ampere", "8", "6"),
    ("RTX-40", "ada-lovelace", "8", "9"),
    ("RTX-50", "blackwell", "12", "0"),
    ("A100", "ampere", "8", "0"),
    ("H100", "hopper", "9", "0"),
)
_PRODUCT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
PRETEND_NODES = "strata.test/pretend"


def labels(product: str, vram_mib: int, count: int) -> dict[str, str]:
    """As GPU Feature Discovery would set them. ClusterError if they could not be labels."""
    if not _PRODUCT.fullmatch(product):
        raise ClusterError(f"GPU product {product!r} is no label value; write it as in NVIDIA-GeForce-RTX-3090")
    if vram_mib <= 0 or count <= 0:
        raise ClusterError(f"a pretend GPU needs vram_mib and count above 0, not {vram_mib} and {count}")
    said = {"present": "true", "product": product, "memory": str(vram_mib), "count": str(count), "replicas": "1"}
    for pattern, family, major, minor in _FAMILIES:
        if pattern in product:
            said |= {"family": family, "compute.major": major, "compute.minor": minor}
    return {f"nvidia.com/gpu.{name}": value for name, value in said.items()}


def add_to_node(api: Api, node: str, product: str, vram_mib: int, count: int) -> None:
    """What was there of an earlier pretend GPU is replaced, all of it."""
    wanted = labels(product, vram_mib, count)
    _relabel(api, node, wanted)
    amount = {RESOURCE: str(count)}
    api.merge(f"/api/v1/nodes/{node}/status", {"status": {"capacity": amount, "allocatable": amount}})


def remove_from_node(api: Api, node: str) -> None:
    _relabel(api, node, {})
    api.merge(
        f"/api/v1/nodes/{node}/status", {"status": {"capacity": {RESOURCE: None}, "allocatable": {RESOURCE: None}}}
    )


def add_nodes(api: Api, number: int, product: str, vram_mib: int, count: int) -> list[str]:
    """Nodes that kwok keeps Ready; pods bound to them are said to run. Names continue where earlier calls ended."""
    if number <= 0:
        raise ClusterError(f"the number of nodes to add must be above 0, not {number}")
    wanted = labels(product, vram_mib, count)
    stem = product.lower().removeprefix("nvidia-").removeprefix("geforce-").replace("_", "-").replace(".", "-")
    existing = {node["metadata"]["name"] for node in _pretend(api)}
    free = (name for name in (f"{stem}-{index}" for index in range(len(existing) + number)) if name not in existing)
    names = [next(free) for _ in range(number)]
    for name in names:
        api.create("/api/v1/nodes", _node(name, wanted, count))
    return names


def remove_nodes(api: Api) -> None:
    for node in _pretend(api):
        try:
            api.delete(f"/api/v1/nodes/{node['metadata']['name']}")
        except ApiError as error:
            if error.status != 404:
                raise


def _pretend(api: Api) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = api.get(f"/api/v1/nodes?labelSelector={PRETEND_NODES}")["items"]
    return items


def _relabel(api: Api, node: str, wanted: dict[str, str]) -> None:
    current = api.get(f"/api/v1/nodes/{node}")["metadata"].get("labels", {})
    stale: dict[str, str | None] = {name: None for name in current if name.startswith("nvidia.com/gpu.")}
    api.merge(f"/api/v1/nodes/{node}", {"metadata": {"labels": stale | wanted}})


def _node(name: str, gpu_labels: dict[str, str], count: int) -> dict[str, Any]:
    amount = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "1Ti", RESOURCE: str(count)}
    usual = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": usual | gpu_labels | {PRETEND_NODES: "true"},
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
        },
        "status": {"capacity": amount, "allocatable": amount},
    }
