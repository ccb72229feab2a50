"""Clients of the real engine notice nothing while its pods are replaced, moved and taken away."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import NAMESPACE
from tests.e2e.load import Load
from tests.e2e.manifest import model
from tests.e2e.models import OPERATOR, OPERATOR_NAMESPACE, evidence, wait_ready
from tests.e2e.target import Target

pytestmark = pytest.mark.cluster

NAME = "busy"
READY_SECONDS = 600
# Two pods beside each other on a node of two CPUs: the user's word is the last on what a pod asks for.
RESOURCES = {"requests": {"cpu": "300m", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
POD = {"spec": {"containers": [{"name": "engine", "resources": RESOURCES}]}}
MINE = ("-n", NAMESPACE, "-l", f"strata.ai/model={NAME}")


@pytest.fixture
def url(target: Target) -> Iterator[str]:
    target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=model(NAME, {"podTemplate": POD}))
    wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
    with target.service(NAMESPACE, NAME) as url:
        yield url
    target.run("kubectl", "delete", "stratamodel", NAME, "-n", NAMESPACE, "--wait")
    target.run("kubectl", "delete", "pods", *MINE, "--wait", "--grace-period=1")


def test_no_request_fails_whatever_happens_to_the_pods(target: Target, cluster: Cluster, url: str) -> None:
    load = Load(url, NAME)

    def more(number: int, after: str) -> None:
        """Wait for so many answers more; none has failed."""
        enough = load.answers + number
        cluster.wait_for(lambda: bool(load.failures) or load.answers >= enough, 120, f"answers after {after}")
        assert load.failures == [], f"after {after}\n{evidence(target, NAMESPACE, NAME)}"

    def change(spec: dict[str, Any]) -> None:
        patch = ("kubectl", "patch", "stratamodel", NAME, "-n", NAMESPACE, "--type=merge", "-p")
        target.run(*patch, json.dumps({"spec": spec}))
        wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)

    def pods() -> set[str]:
        return set(target.run("kubectl", "get", "pods", *MINE, "-o", "name").split())

    with load.running():
        more(3, "the start")
        old = pods()
        change({"engine": {"maxNumSeqs": 3}})
        more(3, "an upgrade")
        cluster.wait_for(lambda: not old & pods(), 120, "the pods of before the upgrade to be gone")
        change({"replicas": 2})
        more(3, "a second replica")
        drain(target, cluster, pods)
        wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
        more(3, "a drain of the node")
        change({"replicas": 1})
        cluster.wait_for(lambda: len(pods()) == 1, 120, "the second replica to be gone")
        more(3, "one replica less")
        target.run("kubectl", "delete", "pods", "-n", OPERATOR_NAMESPACE, "--all", "--grace-period=0", "--force")
        status = ("kubectl", "rollout", "status", f"deployment/{OPERATOR}", "-n", OPERATOR_NAMESPACE)
        target.run(*status, "--timeout=120s")
        more(3, "the operator's restart")
    assert load.failures == []


def drain(target: Target, cluster: Cluster, pods: Callable[[], set[str]]) -> None:
    """Of the only node, which takes pods again once the first is evicted: the budget lets the second go only then."""
    before = pods()
    selector = f"--pod-selector=strata.ai/model={NAME}"
    command = ("kubectl", "drain", cluster.node, "--ignore-daemonsets", "--delete-emptydir-data", selector)
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, env=target.env, stdout=pipe, stderr=both, text=True) as process:
        try:
            cluster.wait_for(lambda: bool(leaving(target)), 60, "the first pod to be evicted")
            assert len(leaving(target)) == 1  # the budget keeps the other
        finally:
            target.run("kubectl", "uncordon", cluster.node)
        said, _ = process.communicate(timeout=READY_SECONDS)
    assert process.returncode == 0, said
    assert not before & pods()


def leaving(target: Target) -> list[str]:
    found = json.loads(target.run("kubectl", "get", "pods", *MINE, "-o", "json"))["items"]
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" in pod["metadata"]]
