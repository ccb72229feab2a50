"""What cannot be served says why, where a person looks for it, and nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.applied import applied, degraded, until
from tests.e2e.conftest import NAMESPACE
from tests.e2e.manifest import model
from tests.e2e.models import conditions
from tests.e2e.target import JourneyError, Target
from tests.operator.live.harness import eventually

pytestmark = pytest.mark.cluster


def events(target: Target, name: str) -> str:
    fields = "{range .items[*]}{.type} {.reason} {.message}{'\\n'}{end}"
    about = f"--field-selector=involvedObject.kind=StrataModel,involvedObject.name={name}"
    return target.run("kubectl", "get", "events", "-n", NAMESPACE, about, "-o", f"jsonpath={fields}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"engine.maxModelLength": 10}, ["unknown field", "maxModelLength"], id="unknown-field"),
        pytest.param({"replicas": -1}, ["spec.replicas", "-1", "greater than or equal to 0"], id="negative-replicas"),
        pytest.param({"model.source": "ftp://host/model"}, ["ftp://host/model", "builtin://"], id="bad-scheme"),
        pytest.param(
            {"hardware.accelerator": "nvidia", "hardware.count": 9},
            ["hardware.count", "9", "allowed is 1"],
            id="count-9",
        ),
    ],
)
def test_the_api_server_refuses_a_bad_model_and_says_what_is_allowed(
    target: Target, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(JourneyError) as error:
        target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=model("refused", changes))
    for word in words:
        assert word in str(error.value)
    assert "refused" not in target.run("kubectl", "get", "stratamodels", "-n", NAMESPACE, "-o", "name")


def test_a_built_in_model_that_does_not_exist_is_refused_with_those_that_do(target: Target) -> None:
    name = "no-such-model"
    with applied(target, model(name, {"model.source": "builtin://nonesuch"}), name):
        state = until(target, name, degraded("InvalidSpec"))
        message = conditions(state)["Degraded"]["message"]
        assert "nonesuch" in message
        assert "smollm2-135m" in message  # what there is instead
        assert conditions(state)["Ready"]["status"] == "False"
        # It is posted once the status is written, which the watch may show before.
        eventually(lambda: "Warning InvalidSpec" in events(target, name), 30, lambda: events(target, name))
        assert "nonesuch" in events(target, name)


def test_a_host_path_that_is_not_there_is_told_from_the_nodes_event(target: Target) -> None:
    name = "no-such-path"
    with applied(target, model(name, {"model.source": "hostpath:///srv/models/nowhere"}), name):
        state = until(target, name, degraded("SourceNotFound"))
        assert "/srv/models/nowhere" in conditions(state)["Degraded"]["message"]


def test_a_gpu_model_waits_where_there_is_no_gpu_and_says_what_it_needs(target: Target) -> None:
    name = "wants-gpu"
    with applied(target, model(name, {"hardware.accelerator": "nvidia", "hardware.gpus": ["RTX3090"]}), name):
        state = until(target, name, degraded("Unschedulable"))
        assert "RTX3090" in conditions(state)["Degraded"]["message"].replace(" ", "").replace("-", "")


def test_a_gpu_model_never_answers_from_the_cpu(target: Target, cluster: Cluster) -> None:
    """The node claims a GPU that is not there: the pod starts, and must fail rather than compute on the CPU."""
    name = "pretend-gpu"
    cluster.add_pretend_gpu(product="NVIDIA-GeForce-RTX-3090")
    try:
        with applied(target, model(name, {"hardware.accelerator": "nvidia", "hardware.gpus": ["RTX3090"]}), name):
            state = until(target, name, degraded("EngineFailed"))
            assert "cuda" in conditions(state)["Degraded"]["message"].lower()
            requests = "{.spec.template.spec.containers[0].resources.requests}"
            asked = target.run("kubectl", "get", "deployment", name, "-n", NAMESPACE, "-o", f"jsonpath={requests}")
            assert '"nvidia.com/gpu":"1"' in asked
            ready = "{.items[*].endpoints[?(@.conditions.ready==true)].addresses}"
            slices = ("endpointslices", "-l", f"kubernetes.io/service-name={name}")
            assert not target.run("kubectl", "get", *slices, "-n", NAMESPACE, "-o", f"jsonpath={ready}").strip()
    finally:
        cluster.remove_pretend_gpu()
