"""The chart's agent alone, as a DaemonSet on the real node, with cards of the fake or with what is real."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manifests.charts import CHART
from manifests.generate import AGENT
from tests.cluster import Cluster
from tests.operator.live.harness import eventually, install_crds

NAMESPACE = "strata-agent-tests"
RELEASE = "strata"
UNINSTALL = ("serviceaccount", "clusterrole", "clusterrolebinding", "role", "rolebinding", "job")


class Agents:
    """The chart's agent alone, beside whatever else runs in the cluster. Without ``cards`` it looks at what is real."""

    def __init__(self, cluster: Cluster, image: str, *cards: dict[str, Any]) -> None:
        self.cluster = cluster
        registry, _, tag = image.partition("/strata-operator:")
        self._values = {
            "image.registry": registry,
            "image.tag": tag,
            "agent.enabled": True,
            "agent.fake": {"cards": cards} if cards else {},
            # Without the chart's own label, which the real node has not.
            "agent.nodeSelector": {"kubernetes.io/hostname": cluster.node, "nvidia.com/gpu.present": None},
        }

    def apply(self, prefix: str, names: tuple[str, ...]) -> None:
        """Render these templates and apply them in this order."""
        for name in names:
            sets = [
                part for key, value in self._values.items() for part in ("--set-json", f"{key}={json.dumps(value)}")
            ]
            helm = [str(self.cluster.bin("helm")), "template", RELEASE, str(CHART), "--namespace", NAMESPACE, *sets]
            command = [*helm, f"--show-only=templates/{prefix}-{name}.yaml"]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            self.cluster.kubectl("apply", "-f", "-", input=text)

    def delete(self) -> None:
        """All that may be left of it, cluster-wide objects among it."""
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", "--ignore-not-found")
        names = [f"{RELEASE}-agent", f"{RELEASE}-uninstall"]
        self.cluster.kubectl("delete", "clusterrole,clusterrolebinding", *names, "--ignore-not-found")
        self.cluster.kubectl("-n", "default", "delete", "role,rolebinding", names[0], "--ignore-not-found")
        self.cluster.kubectl("delete", "stratanode", self.cluster.node, "--ignore-not-found")
        self.cluster.kubectl("taint", "node", self.cluster.node, "strata.ai/gpu-unhealthy-") if self.taints() else None

    def show(self, *cards: dict[str, Any]) -> None:
        """The fake's cards are like that from now on."""
        data = {"data": {"cards.yaml": json.dumps({"cards": cards})}}
        self.cluster.kubectl("-n", NAMESPACE, "patch", "configmap", f"{RELEASE}-agent", "-p", json.dumps(data))
        # The kubelet brings a changed ConfigMap into a pod at once when the pod itself changes, else after a minute.
        self.cluster.kubectl(
            "-n", NAMESPACE, "annotate", "pod", self.pod(), "--overwrite", f"tests/card={hash(str(cards))}"
        )

    def pod(self) -> str:
        selector = ("-l", "app.kubernetes.io/name=strata-agent", "--field-selector=status.phase=Running")
        return self.cluster.kubectl(
            "-n", NAMESPACE, "get", "pods", *selector, "-o", "jsonpath={.items[0].metadata.name}"
        ).strip()

    def rolled_out(self) -> None:
        self.cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{RELEASE}-agent", "--timeout=300s")

    def node(self) -> dict[str, Any]:
        """The StrataNode; empty where there is none."""
        text = self.cluster.kubectl("get", "stratanode", self.cluster.node, "--ignore-not-found", "-o", "json")
        return dict(json.loads(text)) if text.strip() else {}

    def patch(self, patch: dict[str, Any]) -> None:
        self.cluster.kubectl("patch", "stratanode", self.cluster.node, "--type=merge", "-p", json.dumps(patch))

    def want(self, *wishes: dict[str, Any]) -> None:
        self.patch({"spec": {"tuning": {"models": list(wishes)}}})

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason, of the present generation only."""
        node = self.node()
        for one in (node.get("status") or {}).get("conditions") or []:
            if one["type"] == kind and one["observedGeneration"] == node["metadata"]["generation"]:
                return one["status"], one["reason"]
        return "", ""

    def limit(self) -> int | None:
        """Watts that the card has now."""
        gpus = (self.node().get("status") or {}).get("gpus") or [{}]
        return (gpus[0].get("power") or {}).get("limitWatts")

    def taints(self) -> bool:
        return "strata.ai/gpu-unhealthy" in self.cluster.kubectl(
            "get", "node", self.cluster.node, "-o", "jsonpath={.spec.taints[*].key}"
        )

    def until(self, what: Any, seconds: float = 60) -> None:
        def tell() -> str:
            log = self.cluster.kubectl("-n", NAMESPACE, "logs", f"daemonset/{RELEASE}-agent", "--tail=40")
            return f"{json.dumps(self.node().get('status'), indent=1)}\n{log}"

        eventually(lambda: bool(what()), seconds, tell)


@contextmanager
def installed(cluster: Cluster, image: str, *cards: dict[str, Any]) -> Iterator[Agents]:
    """``image``: the operator's. Nothing of the agent is left afterwards."""
    made = Agents(cluster, image, *cards)
    install_crds(cluster)
    made.delete()
    cluster.kubectl("create", "namespace", NAMESPACE)
    try:
        made.apply("agent", ("configmap", *AGENT) if cards else AGENT)
        made.rolled_out()
        yield made
    finally:
        made.delete()
