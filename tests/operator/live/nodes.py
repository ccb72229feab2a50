"""Pretend GPU nodes as a node agent tells of them; the test is the agent."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster import Cluster
from tests.operator.samples import gpu, node_object

PRODUCT = "NVIDIA-GeForce-RTX-4090"


class GpuNodes:
    """Nodes of kwok and their StrataNodes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.names: list[str] = []

    def add(self, *, cards: int = 1, vram_gib: int = 24, memory_gib: int = 64) -> str:
        """A node more; its name."""
        (name,) = self.cluster.add_gpu_nodes(1, product=PRODUCT, vram_mib=vram_gib * 1024 - 12, count=cards)
        self.names.append(name)
        gpus = [gpu(PRODUCT, vram_gib=vram_gib, uuid=f"GPU-{name}-{number}") for number in range(cards)]
        node = {**node_object(name, gpus=gpus, memory_gib=memory_gib), "metadata": {"name": name}}
        status = node.pop("status")
        del status["calibration"]
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(node))
        self._patch_status(name, status)
        return name

    def act(self, name: str) -> None:
        """What the agent says once it has applied all that is wanted of the node."""
        said = {"type": "Tuned", "status": "True", "reason": "InForce", "message": "all that models want is in force"}
        generation = self.get(name)["metadata"]["generation"]
        condition = {**said, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation}
        self._patch_status(name, {"observedGeneration": generation, "conditions": [condition]})

    def lose_card(self, name: str) -> None:
        """The agent sees a card fall off the bus, says so and taints its node."""
        said = {"message": "card GPU-1: XID 79", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
        ill = {"type": "Healthy", "status": "False", "reason": "GpuLost", **said}
        gone = {"type": "GpuLost", "status": "True", "reason": "OffTheBus", **said}
        self.cluster.kubectl("taint", "node", name, "strata.ai/gpu-unhealthy=:NoSchedule")
        self._patch_status(name, {"conditions": [ill, gone]})

    def edit(self, name: str, wishes: list[dict[str, Any]]) -> None:
        """As somebody with kubectl would."""
        patch = json.dumps({"spec": {"tuning": {"models": wishes}}})
        self.cluster.kubectl("patch", "stratanode", name, "--type=merge", "-p", patch)

    def wishes(self, name: str) -> list[dict[str, Any]]:
        return list((self.get(name)["spec"].get("tuning") or {}).get("models") or [])

    def get(self, name: str) -> dict[str, Any]:
        return dict(self.cluster.get_json("stratanode", name))

    def remove(self) -> None:
        for name in self.names:
            self.cluster.kubectl("delete", "stratanode", name, "--ignore-not-found")
        self.cluster.remove_gpu_nodes()
        # Pods of nodes that are gone hold their cards for a minute, those of the next test's nodes of the same names.
        for name in self.names:
            bound = f"--field-selector=spec.nodeName={name}"
            self.cluster.kubectl("delete", "pods", "-A", bound, "--force", "--grace-period=0", "--ignore-not-found")

    def _patch_status(self, name: str, status: dict[str, Any]) -> None:
        patch = json.dumps({"status": status})
        self.cluster.kubectl("patch", "stratanode", name, "--subresource=status", "--type=merge", "-p", patch)
