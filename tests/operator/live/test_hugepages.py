"""Huge pages from the spec to a process that has them mapped: agent, kernel, kubelet and pod are real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.agents import Agents, installed
from tests.operator.live.harness import Models, OperatorProcess, eventually

pytestmark = pytest.mark.cluster

PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
NUMBER = 8  # what the stand-in for the engine maps: 16 MiB
HARDWARE: dict[str, Any] = {
    "accelerator": "cpu",
    "cpu": 1,
    "memory": "1Gi",
    "hostMemory": {"pinned": "16Mi", "hugepages": "2Mi"},
}


def pages(what: str = "nr") -> int:
    """Of this machine: ``nr`` there are, ``free`` are those of them that nobody has mapped."""
    return int((PAGES / f"{what}_hugepages").read_text())


@pytest.fixture
def agents(cluster: Cluster, operator_image: str) -> Iterator[Agents]:
    """The privileged agent, which finds no card here, and the machine's own huge pages."""
    before = pages()
    try:
        with installed(cluster, operator_image) as made:
            yield made
    finally:
        (PAGES / "nr_hugepages").write_text(str(before))
        cluster.restart("kubelet")  # it goes on counting those of before otherwise


def test_a_pod_maps_huge_pages_that_the_agent_reserved(
    quiet: None, models: Models, operator: OperatorProcess, agents: Agents
) -> None:
    before, free = pages(), pages("free")
    models.apply("huge", hardware=HARDWARE)
    told = models.wait_for("huge", "NodeTuned", "False", "KubeletRestartNeeded")
    assert "restart the kubelet" in told["message"]
    assert pages() >= NUMBER
    assert models.condition("huge", "Ready")["status"] == "False"
    agents.cluster.restart("kubelet")
    models.wait_for("huge", "Ready", "True")
    models.wait_for("huge", "NodeTuned", "True", "Tuned")
    assert free + pages() - before - pages("free") == NUMBER
    models.kubectl("delete", "sm", "huge")
    eventually(lambda: pages() == before, 60, lambda: f"{pages()} pages, before {before}: {agents.node()['status']}")
    assert pages("free") == free
