"""What a person is told when a model cannot be served; nothing goes wrong without a reason."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import Models, OperatorProcess, eventually, install_crds

pytestmark = pytest.mark.cluster


def test_a_source_that_the_engine_does_not_know(models: Models, operator: OperatorProcess) -> None:
    models.apply("lost", source="hf://stand-in/absent")
    condition = models.wait_for("lost", "Degraded", "True", "EngineFailed")
    assert condition["message"] == "there is no built-in model 'absent'; there are: smollm2-135m"
    assert models.condition("lost", "Ready")["message"] == condition["message"]
    event = models.wait_for_event("lost", "EngineFailed")
    assert event["type"] == "Warning"
    assert event["message"] == condition["message"]

    def restarts() -> int:
        pods = json.loads(models.kubectl("get", "pods", "-o", "json"))["items"]
        return sum(status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses", []))

    since = models.condition("lost", "Degraded")["lastTransitionTime"]
    version = models.get("sm", "lost")["metadata"]["resourceVersion"]
    eventually(lambda: restarts() >= 2, 120, operator.tail)
    # A loop of crashes is one event and one status: it ticks in the pod, not in the model.
    assert models.condition("lost", "Degraded")["lastTransitionTime"] == since
    assert models.get("sm", "lost")["metadata"]["resourceVersion"] == version
    assert models.times("lost", "EngineFailed") == 1


def test_an_engine_that_ends_without_last_words(models: Models, operator: OperatorProcess) -> None:
    models.apply("wordless", source="hf://stand-in/wordless")
    assert "something unforeseen" in models.wait_for("wordless", "Degraded", "True", "EngineFailed")["message"]


def test_too_little_memory(models: Models, operator: OperatorProcess) -> None:
    models.apply("hungry", source="hf://stand-in/hungry")
    assert "spec.hardware.memory" in models.wait_for("hungry", "Degraded", "True", "OutOfMemory")["message"]


def test_a_host_path_that_is_not_there(models: Models, operator: OperatorProcess) -> None:
    models.apply("pathless", source="hostpath:///nowhere/to/be/found")
    condition = models.wait_for("pathless", "Degraded", "True", "SourceNotFound")
    assert "/nowhere/to/be/found" in condition["message"]
    assert models.wait_for_event("pathless", "SourceNotFound")["type"] == "Warning"


def test_a_reason_that_no_condition_may_bear(models: Models, operator: OperatorProcess) -> None:
    """Anybody may post events on a pod; a reason that the schema refuses must not freeze the status."""
    models.apply("busy", source="hostpath:///nowhere")
    models.wait_for("busy", "Degraded", "True", "SourceNotFound")
    pod = json.loads(models.kubectl("get", "pods", "-o", "json"))["items"][0]["metadata"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "foreign", "namespace": models.namespace},
        "involvedObject": {"kind": "Pod", "namespace": models.namespace, "name": pod["name"], "uid": pod["uid"]},
        "type": "Warning",
        "reason": "Multi-Attach",
        "message": "the volume is in use elsewhere",
        "lastTimestamp": "2099-01-01T00:00:00Z",  # newer than whatever the kubelet goes on to post
    }
    models.kubectl("create", "-f", "-", input=json.dumps(event))
    condition = models.wait_for("busy", "Degraded", "True", "MultiAttach")
    assert condition["message"] == "the volume is in use elsewhere"


def test_a_claim_that_is_not_there(models: Models, operator: OperatorProcess) -> None:
    models.apply("claimless", source="pvc://nobody/model")
    assert '"nobody" not found' in models.wait_for("claimless", "Degraded", "True", "Unschedulable")["message"]


@pytest.mark.parametrize(
    ("field", "spec", "reason", "key"),
    [
        ("spec.service.apiKeysSecretRef", {"service": {"apiKeysSecretRef": {"name": "none"}}}, "FailedMount", "keys"),
        (
            "spec.model.secretRef",
            {"model": {"source": "hf://stand-in/any", "secretRef": {"name": "none"}}},
            "ContainerRefused",
            "token",
        ),
    ],
    ids=["API keys", "the Hub's token"],
)
def test_a_secret_that_is_not_there(
    models: Models, operator: OperatorProcess, field: str, spec: dict[str, Any], reason: str, key: str
) -> None:
    """The kubelet says it, and the operator which field it is and what to do."""
    models.apply("keyless", **spec)
    absent = f'Secret "none" not found in namespace {models.namespace}; create it, or name another in {field}'
    assert models.wait_for("keyless", "Degraded", "True", reason)["message"] == absent
    models.kubectl("create", "secret", "generic", "none", "--from-literal=other=x")
    keyless = f'Secret "none" in namespace {models.namespace} has no key "{key}"; add it, or name another in {field}'
    eventually(lambda: models.condition("keyless", "Degraded").get("message") == keyless, 240, operator.tail)


def test_an_image_that_is_not_there(models: Models, cluster: Cluster, operator: OperatorProcess) -> None:
    image = f"{cluster.registry}/nothing:here"
    models.apply("imageless", image=image)
    condition = models.wait_for("imageless", "Degraded", "True", "ImagePullFailed")
    assert condition["message"].startswith(f"image {image}: ")
    assert "not found" in condition["message"]


def test_a_slow_model_is_no_failing_one(models: Models, operator: OperatorProcess) -> None:
    models.apply("slow", source="hf://stand-in/slow")
    assert "/ready" in models.wait_for("slow", "Progressing", "True", "Loading")["message"]
    assert models.condition("slow", "Ready")["reason"] == "Progressing"
    assert models.condition("slow", "Degraded")["status"] == "False"


def test_no_node_has_the_card(models: Models, operator: OperatorProcess) -> None:
    hardware = {"accelerator": "nvidia", "gpus": ["RTX4090D"], "cpu": 1, "memory": "512Mi"}
    models.apply("cardless", hardware=hardware)
    condition = models.wait_for("cardless", "Degraded", "True", "Unschedulable")
    assert "NVIDIA-GeForce-RTX-4090-D" in condition["message"]
    assert re.search(
        r"node \S+ comes closest: it lacks the labels .*; cards: 1 needed, 0 of 0 free", condition["message"]
    )
    assert "nodes are available" in condition["message"]
    assert models.wait_for_event("cardless", "Unschedulable")["type"] == "Warning"


def test_a_gpu_model_runs_on_the_card_that_it_names(
    models: Models, cluster: Cluster, operator: OperatorProcess
) -> None:
    hardware = {"accelerator": "nvidia", "gpus": ["RTX3090"], "cpu": 1, "memory": "512Mi"}
    models.apply("carded", hardware=hardware)
    models.wait_for("carded", "Degraded", "True", "Unschedulable")
    cluster.add_pretend_gpu(count=1, product="NVIDIA-GeForce-RTX-3090")
    try:
        models.wait_for("carded", "Ready", "True")
        pod = json.loads(models.kubectl("get", "pods", "-o", "json"))["items"][0]["spec"]["containers"][0]
        assert pod["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert "--device=cuda" in pod["args"]
    finally:
        models.kubectl("delete", "sm", "carded", "--cascade=foreground")
        cluster.remove_pretend_gpu()


def test_a_cpu_model_asks_for_no_card(models: Models, cluster: Cluster, operator: OperatorProcess) -> None:
    models.apply("plain")
    models.wait_for("plain", "Ready", "True")
    pod = json.loads(models.kubectl("get", "pods", "-o", "json"))["items"][0]
    assert "nvidia.com/gpu" not in json.dumps(pod["spec"]["containers"][0]["resources"])
    assert "--device=cpu" in pod["spec"]["containers"][0]["args"]
    assert pod["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize("kind", ["service", "deployment", "serviceaccount"])
def test_an_object_of_somebody_else_is_left_alone(models: Models, operator: OperatorProcess, kind: str) -> None:
    foreign = {
        "service": ("service", "clusterip", "taken", "--tcp=99:99"),
        "deployment": ("deployment", "taken", "--image=example.com/mine", "--replicas=0"),
        "serviceaccount": ("serviceaccount", "taken"),
    }[kind]
    models.kubectl("create", *foreign)
    uid = models.get(kind, "taken")["metadata"]["uid"]
    models.apply("taken", replicas=0)
    condition = models.wait_for("taken", "Degraded", "True", "NameConflict")
    assert f"{kind} taken" in condition["message"].lower()
    assert models.wait_for_event("taken", "NameConflict")["type"] == "Warning"
    there = models.get(kind, "taken")["metadata"]
    assert there["uid"] == uid
    assert "ownerReferences" not in there
    assert "strata" not in json.dumps(there)
    models.kubectl("delete", kind, "taken")
    models.kubectl("annotate", "sm", "taken", "example.com/look=again")
    models.wait_for("taken", "Ready", "False", "ScaledToZero")
    assert models.get(kind, "taken")["metadata"]["ownerReferences"][0]["kind"] == "StrataModel"


def test_a_child_that_was_set_free_is_left_alone(models: Models, operator: OperatorProcess) -> None:
    models.apply("freed", replicas=0)
    models.wait_for("freed", "Ready", "False", "ScaledToZero")
    models.kubectl("patch", "serviceaccount", "freed", "-p", '{"metadata": {"ownerReferences": null}}')
    assert "ServiceAccount freed" in models.wait_for("freed", "Degraded", "True", "NameConflict")["message"]
    assert "ownerReferences" not in models.get("serviceaccount", "freed")["metadata"]


def test_pods_that_the_api_server_refuses(models: Models, operator: OperatorProcess) -> None:
    models.kubectl("label", "namespace", models.namespace, "pod-security.kubernetes.io/enforce=restricted")
    models.apply("forbidden")
    assert "violates PodSecurity" in models.wait_for("forbidden", "Degraded", "True", "PodsRefused")["message"]


def test_a_child_that_the_api_server_refuses(models: Models, operator: OperatorProcess) -> None:
    models.apply("refused", replicas=0, scheduling={"nodeSelector": {"not a label!": "x"}})
    condition = models.wait_for("refused", "Degraded", "True", "ApplyRefused")
    assert "not a label!" in condition["message"]
    assert models.get("deployment", "refused") is None


def test_a_crd_that_is_deleted_and_comes_back_is_served_without_a_restart(
    models: Models, cluster: Cluster, operator: OperatorProcess
) -> None:
    models.apply("before", replicas=0)
    models.wait_for("before", "Ready", "False", "ScaledToZero")
    cluster.kubectl("delete", "crd", "stratamodels.strata.ai", "--timeout=120s")
    try:
        eventually(lambda: "the CRD StrataModel is not installed" in operator.tail(), 60, operator.tail)
        assert operator.is_alive()
    finally:
        install_crds(cluster)
    models.apply("after", replicas=0)
    models.wait_for("after", "Ready", "False", "ScaledToZero")
    eventually(lambda: models.get("service", "before") is None, 60, operator.tail)
    assert "Traceback (most recent call last)" not in operator.log.read_text()
