"""Hundreds of pretend GPU nodes with their StrataNodes, and models for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tests.cluster import Cluster
from tests.cluster.api import Api
from tests.operator.live.harness import manifest
from tests.operator.samples import gpu, node_object

PRODUCT, VRAM_GIB, CARDS = "NVIDIA-GeForce-RTX-4090", 24, 2
_NODES = "/apis/strata.ai/v1alpha1/stratanodes"


def add_nodes(cluster: Cluster, number: int) -> None:
    """Nodes with two cards each, and what an agent would tell of them."""
    names = cluster.add_gpu_nodes(number, product=PRODUCT, vram_mib=VRAM_GIB * 1024 - 12, count=CARDS)
    with Api(cluster.kubeconfig) as api:
        for name in names:
            cards = [gpu(PRODUCT, vram_gib=VRAM_GIB, uuid=f"GPU-{name}-{card}") for card in range(CARDS)]
            node = {**node_object(name, gpus=cards), "metadata": {"name": name}}
            status = node.pop("status")
            del status["calibration"]
            api.create(_NODES, node)
            api.merge(f"{_NODES}/{name}/status", {"status": status})


def remove_nodes(cluster: Cluster) -> None:
    cluster.kubectl("delete", "stratanodes", "--all")
    cluster.remove_gpu_nodes()


def model(name: str) -> dict[str, Any]:
    """One whose fit is judged against every node, and that takes one card."""
    return manifest(
        name,
        "hf://Qwen/Qwen3-8B",
        engine={"maxModelLen": 8192, "maxNumSeqs": 4},
        hardware={"accelerator": "nvidia", "gpus": ["RTX4090"], "cpu": 4, "memory": "16Gi"},
    )


class Models:
    """StrataModels in those namespaces, by turns; by plain requests over one connection, for kubectl takes 50 ms of a
    core for each."""

    def __init__(self, api: Api, namespaces: Sequence[str]) -> None:
        self._api = api
        self._namespaces = namespaces

    def apply(self, names: Sequence[str], *, per_second: float) -> dict[str, float]:
        """Create them at that rate; when each was asked for (monotonic seconds)."""
        asked = {}
        begin = time.monotonic()
        for index, name in enumerate(names):
            time.sleep(max(0.0, begin + index / per_second - time.monotonic()))
            asked[name] = time.monotonic()
            self._api.create(_models(self._namespaces[index % len(self._namespaces)]), model(name))
        return asked

    def touch(self, number: int, value: str) -> None:
        """A change of so many of them that calls for a reconcile of each and for nothing else."""
        for one in self._all()[:number]:
            path = _models(one["metadata"]["namespace"]) + "/" + one["metadata"]["name"]
            self._api.merge(path, {"metadata": {"annotations": {"example.com/touched": value}}})

    def ready(self) -> int:
        """How many are."""
        return sum(
            condition["type"] == "Ready" and condition["status"] == "True"
            for one in self._all()
            for condition in (one.get("status") or {}).get("conditions") or ()
        )

    def delete_all(self) -> None:
        for namespace in self._namespaces:
            self._api.delete(_models(namespace))

    def count(self) -> int:
        return len(self._all())

    def _all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api.get("/apis/strata.ai/v1alpha1/stratamodels")["items"]
        return [one for one in found if one["metadata"]["namespace"] in self._namespaces]


def _models(namespace: str) -> str:
    return f"/apis/strata.ai/v1alpha1/namespaces/{namespace}/stratamodels"
