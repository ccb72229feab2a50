"""The node agent as a real DaemonSet pod, with the fake's cards: found, tuned, killed, lost, mended, uninstalled."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from manifests.generate import AGENT, CHART
from tests.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.operator.live.harness import eventually

if TYPE_CHECKING:
    from images.build import Images

pytestmark = pytest.mark.cluster

NAMESPACE = "strata-agent-tests"
RELEASE = "strata"
CARD = {"kind": "rtx3090", "power_limit": 300_000}
UNINSTALL = ("serviceaccount", "clusterrole", "clusterrolebinding", "role", "rolebinding", "job")
WISH = {"model": "llm/qwen3", "powerLimitWatts": 280, "smClockMaxMHz": 1800}


class Agents:
    """The chart's agent alone, beside whatever else runs in the cluster. Without ``card`` it looks at what is real."""

    def __init__(self, cluster: Cluster, images: Images, card: dict[str, Any] | None) -> None:
        self.cluster = cluster
        registry, _, tag = images.operator.partition("/strata-operator:")
        self._values = {
            "image.registry": registry,
            "image.tag": tag,
            "agent.enabled": True,
            "agent.fake": {"cards": [card]} if card else {},
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

    def show(self, card: dict[str, Any]) -> None:
        """The fake's card is like that from now on."""
        data = {"data": {"cards.yaml": json.dumps({"cards": [card]})}}
        self.cluster.kubectl("-n", NAMESPACE, "patch", "configmap", f"{RELEASE}-agent", "-p", json.dumps(data))
        # The kubelet brings a changed ConfigMap into a pod at once when the pod itself changes, else after a minute.
        self.cluster.kubectl(
            "-n", NAMESPACE, "annotate", "pod", self.pod(), "--overwrite", f"tests/card={hash(str(card))}"
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
def installed(cluster: Cluster, images: Images, card: dict[str, Any] | None) -> Iterator[Agents]:
    made = Agents(cluster, images, card)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "crd/stratanodes.strata.ai", "--timeout=60s")
    made.delete()
    cluster.kubectl("create", "namespace", NAMESPACE)
    try:
        made.apply("agent", ("configmap", *AGENT) if card else AGENT)
        made.rolled_out()
        yield made
    finally:
        made.delete()


@pytest.fixture
def agents(cluster: Cluster, images: Images) -> Iterator[Agents]:
    with installed(cluster, images, CARD) as made:
        yield made


def test_the_life_of_an_agent(agents: Agents) -> None:
    cluster = agents.cluster
    agents.until(lambda: agents.condition("Healthy") == ("True", "AllWell"))
    assert agents.limit() == 300
    labels = json.loads(cluster.kubectl("get", "node", cluster.node, "-o", "jsonpath={.metadata.labels}"))
    assert labels["strata.ai/gpu-product"] == "NVIDIA-GeForce-RTX-3090"
    shown = cluster.kubectl("get", "stratanodes", "--no-headers")
    assert "NothingAsked" in shown

    # A model comes: its limit is in force, with the administrator's value on record.
    agents.want(WISH)
    agents.until(lambda: agents.condition("Tuned") == ("True", "InForce"))
    assert agents.limit() == 280
    (original,) = agents.node()["status"]["originals"]["gpus"]
    assert (original["powerLimitMilliwatts"], original["persistenceMode"]) == (300_000, False)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{agents.pod()}:8080/proxy/metrics"
    metrics = cluster.kubectl("get", "--raw", path)
    assert any('kind="enforced"' in line and line.endswith(" 280.0") for line in metrics.splitlines())

    # While nothing happens nothing is written.
    version = agents.node()["metadata"]["resourceVersion"]
    before = cluster.kubectl("get", "--raw", path)
    turns = "strata_gpu_energy_joules_total"
    agents.until(lambda: _sample(cluster.kubectl("get", "--raw", path), turns) > _sample(before, turns) + 500)
    assert agents.node()["metadata"]["resourceVersion"] == version

    # The agent dies, and the fake's card with it: the new one has its own limit again, as after a reset.
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", agents.pod(), "--grace-period=0", "--force")
    agents.rolled_out()
    agents.until(lambda: agents.condition("Tuned") == ("True", "InForce") and agents.limit() == 280)
    assert agents.node()["status"]["originals"]["gpus"] == [original]

    # Out of range: refused with what is allowed.
    agents.want({**WISH, "powerLimitWatts": 50})
    agents.until(lambda: agents.condition("Tuned") == ("False", "Refused"))
    agents.want(WISH)

    # The card falls off the bus, and comes back.
    agents.show({**CARD, "lost": True})
    agents.until(lambda: agents.condition("GpuLost") == ("True", "OffTheBus") and agents.taints(), 120)
    agents.show({**CARD, "lost": False})
    agents.until(lambda: agents.condition("GpuLost")[0] == "False", 120)
    cluster.kubectl("annotate", "stratanode", cluster.node, "strata.ai/forget-faults=true")
    agents.until(lambda: agents.condition("Healthy")[0] == "True" and not agents.taints())

    # The last model leaves.
    agents.want()
    agents.until(lambda: agents.limit() == 300 and "originals" not in agents.node()["status"])

    # The hook of `helm uninstall`, with its own rights.
    agents.want(WISH)
    agents.until(lambda: agents.limit() == 280)
    agents.apply("uninstall", UNINSTALL)
    job = f"job/{RELEASE}-uninstall"
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=Complete", job, "--timeout=180s")
    assert agents.node() == {}
    assert "strata.ai/" not in cluster.kubectl("get", "node", cluster.node, "-o", "jsonpath={.metadata.labels}")
    assert cluster.kubectl("-n", NAMESPACE, "get", "daemonsets", "-o", "name").strip() == ""
    assert "every setting has its original value" in cluster.kubectl("-n", NAMESPACE, "logs", job)


def test_a_node_without_a_driver_tells_of_its_host_and_is_not_tainted(cluster: Cluster, images: Images) -> None:
    """The privileged pod with the host's /sys, on a machine that has no card."""
    with installed(cluster, images, None) as agents:
        agents.until(lambda: agents.condition("Healthy") == ("False", "DriverMissing"))
        host = agents.node()["status"]["host"]
        assert host["memoryBytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert host["cores"] >= len(os.sched_getaffinity(0))
        assert not agents.taints()


def test_a_bad_strata_node_is_refused_by_the_api_server(agents: Agents) -> None:
    agents.until(lambda: agents.node())
    for spec, words in (
        ({"powerBudgetWatts": 5}, "greater than or equal to 50"),
        ({"tuning": {"models": [{"model": "no-slash"}]}}, "NAMESPACE/NAME of a StrataModel is needed"),
        ({"tuning": {"models": [{"model": "a/b", "powerLimitWatts": 0}]}}, "greater than or equal to 1"),
        ({"tuning": {"models": [{"model": "a/b"}, {"model": "a/b"}]}}, "Duplicate value"),
        ({"tuning": {"models": [{"model": "a/b", "hugepages": [{"size": "4Mi", "pages": 1}]}]}}, '"2Mi", "1Gi"'),
        ({"fans": 3}, 'unknown field "spec.fans"'),
    ):
        node = {"apiVersion": "strata.ai/v1alpha1", "kind": "StrataNode", "metadata": {"name": "bad"}, "spec": spec}
        with pytest.raises(ClusterError) as refusal:
            agents.cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(node))
        assert words in str(refusal.value), spec


def _sample(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name}{{"))
