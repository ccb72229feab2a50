from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.node import UNHEALTHY_TAINT
from strata_operator.render import children
from strata_operator.room import obstacle, tolerates
from tests.operator.samples import NVIDIA, model

LABELS = {"strata.ai/gpu-product": "NVIDIA-GeForce-RTX-4090", "strata.ai/vram-gib": "24", "disk": "nvme"}
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}


def wanted(**spec: Any) -> Any:
    """A rendered pod of a model that takes one card of 24 GiB."""
    made = children(model(hardware={**NVIDIA, "minVramGiB": 24}, **spec), engine_image="e")
    return made["Deployment"]["spec"]["template"]["spec"]


def node(cards: str = "1", labels: dict[str, str] = LABELS, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "node-2", "labels": labels}
    return {"metadata": metadata, "spec": spec, "status": {"allocatable": {"nvidia.com/gpu": cards}}}


def holder(phase: str = "Running") -> dict[str, Any]:
    """A pod that has one card."""
    return {
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}, {}]},
        "status": {"phase": phase},
    }


def selecting(**labels: str) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"nodeSelector": labels}}}


def requiring(*terms: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"podTemplate": {"spec": {"affinity": {"nodeAffinity": required}}}}


def asking(operator: str, *values: str, key: str = "disk") -> dict[str, Any]:
    return requiring({"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]})


NO_LABEL = "lacks the labels that the pod's affinity requires"


@pytest.mark.parametrize(
    ("there", "pods", "spec", "expected"),
    [
        pytest.param(node(), [], {}, "", id="nothing"),
        pytest.param(node(unschedulable=True), [], {}, "is cordoned", id="a cordon"),
        pytest.param(node(taints=[TAINT]), [], {}, "has the taint team", id="a taint"),
        pytest.param(
            node(taints=[{**TAINT, "effect": "NoExecute"}]), [], {}, "has the taint team", id="a stronger one"
        ),
        pytest.param(node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), [], {}, "", id="a weaker one"),
        pytest.param(
            node(taints=[TAINT]),
            [],
            {"scheduling": {"tolerations": [{"key": "team", "operator": "Equal", "value": "a"}]}},
            "",
            id="a taint that the spec tolerates",
        ),
        pytest.param(
            node(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]), [], {}, "", id="the taint of GPU nodes"
        ),
        pytest.param(node(), [], selecting(disk="nvme"), "", id="a label that it bears"),
        pytest.param(node(), [], selecting(disk="hdd"), "lacks the label disk=hdd", id="one of another value"),
        pytest.param(node(labels={}), [], {}, NO_LABEL, id="no agent's labels"),
        pytest.param(node(labels={**LABELS, "strata.ai/vram-gib": "16"}), [], {}, NO_LABEL, id="a smaller card"),
        pytest.param(node(), [], requiring({}), NO_LABEL, id="an empty term"),
        pytest.param(node(), [], requiring({}, BY_NAME), "", id="any of the terms"),
        pytest.param(node(), [], asking("NotIn", "nvme"), NO_LABEL, id="a value that must not be"),
        pytest.param(node(), [], asking("NotIn", "hdd", key="x"), "", id="is not there, so it is not that value"),
        pytest.param(node(), [], asking("DoesNotExist"), NO_LABEL, id="a label that must not be"),
        pytest.param(node(), [], asking("Exists"), "", id="a label of any value"),
        pytest.param(node(), [], asking("Lt", "30", key="strata.ai/vram-gib"), "", id="less than"),
        pytest.param(node(), [], asking("Gt", "3"), NO_LABEL, id="no number"),
        pytest.param(node("0"), [], {}, "has 0 of 0 cards free", id="the device plugin tells of none"),
        pytest.param(node(), [holder()], {}, "has 0 of 1 cards free", id="somebody has its card"),
        pytest.param(node("2"), [holder()], {}, "", id="somebody has one of two"),
        pytest.param(node(), [holder("Succeeded"), holder("Failed")], {}, "", id="those that ended hold none"),
    ],
)
def test_what_keeps_a_pod_from_a_node(there: Any, pods: Any, spec: dict[str, Any], expected: str) -> None:
    assert obstacle(there, pods, wanted(**spec)) == expected


def test_a_pod_for_a_node_that_is_not_healthy_tolerates_that_very_taint() -> None:
    taint = {"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}
    assert tolerates({"operator": "Exists"}, taint)
    assert not tolerates({"key": UNHEALTHY_TAINT, "operator": "Exists", "effect": "NoExecute"}, taint)
