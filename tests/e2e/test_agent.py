"""The node agent as a real DaemonSet pod, with the fake's cards: found, tuned, killed, lost, mended, uninstalled."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.e2e.agents import NAMESPACE, RELEASE, UNINSTALL, Agents, installed
from tests.operator.live.harness import stopped_operators
from tests.operator.samples import model_object

pytestmark = pytest.mark.cluster

CARD = {"kind": "rtx3090", "power_limit": 300_000}
HELD = {
    "apiVersion": "strata.ai/v1alpha1",
    "kind": "StrataModel",
    "metadata": {"name": "held", "namespace": NAMESPACE, "finalizers": ["strata.ai/node-tuning"]},
    "spec": model_object()["spec"] | {"suspend": True},
}
WISH = {"model": "llm/qwen3", "powerLimitWatts": 280, "smClockMaxMHz": 1800}


@pytest.fixture
def agents(cluster: Cluster, operator_image: str) -> Iterator[Agents]:
    """Alone: an operator takes back what a model that is not there wants of a node."""
    with stopped_operators(cluster), installed(cluster, operator_image, CARD) as made:
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

    # The hook of `helm uninstall`, with its own rights; a model that waits for an operator may go then.
    agents.want(WISH)
    agents.until(lambda: agents.limit() == 280)
    cluster.kubectl("apply", "-f", "-", input=json.dumps(HELD))
    agents.apply("uninstall", UNINSTALL)
    job = f"job/{RELEASE}-uninstall"
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=Complete", job, "--timeout=180s")
    assert agents.node() == {}
    assert "strata.ai/" not in cluster.kubectl("get", "node", cluster.node, "-o", "jsonpath={.metadata.labels}")
    assert cluster.kubectl("-n", NAMESPACE, "get", "daemonsets", "-o", "name").strip() == ""
    cluster.kubectl("-n", NAMESPACE, "delete", "sm", "held", "--timeout=30s")
    assert "every setting has its original value" in cluster.kubectl("-n", NAMESPACE, "logs", job)


def test_a_node_without_a_driver_tells_of_its_host_and_is_not_tainted(cluster: Cluster, operator_image: str) -> None:
    """The privileged pod with the host's /sys, on a machine that has no card."""
    with installed(cluster, operator_image) as agents:
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
