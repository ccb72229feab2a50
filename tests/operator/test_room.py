from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.node import UNHEALTHY_TAINT
from strata_operator.render import children
from strata_operator.room import asked, closest, obstacle, tolerates, used
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
        pytest.param(
            node("0"), [], {}, "is short of cards: 1 needed, 0 of 0 free", id="the device plugin tells of none"
        ),
        pytest.param(node(), [holder()], {}, "is short of cards: 1 needed, 0 of 1 free", id="somebody has its card"),
        pytest.param(node("2"), [holder()], {}, "", id="somebody has one of two"),
        pytest.param(node(), [holder("Succeeded"), holder("Failed")], {}, "", id="those that ended hold none"),
    ],
)
def test_what_keeps_a_pod_from_a_node(there: Any, pods: Any, spec: dict[str, Any], expected: str) -> None:
    assert obstacle(there, pods, wanted(**spec)) == expected


GIB = 1 << 30


def host(name: str = "node-2", *, cpu: str = "16", memory: str = "64Gi", cards: str = "1", **spec: Any) -> Any:
    made = node(cards, **spec)
    made["metadata"] = {"name": name, "labels": LABELS}
    made["status"]["allocatable"] |= {"cpu": cpu, "memory": memory, "pods": "110"}
    return made


def holding(**requests: str) -> dict[str, int]:
    """What pods of a node use."""
    return used([{"spec": {"containers": [{"resources": {"requests": requests}}]}}])


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        pytest.param([], "", id="none is known"),
        pytest.param([(host(), {})], "", id="it would take the pod"),
        pytest.param(
            [(host(), holding(cpu="13500m", memory="50Gi"))],
            "node node-2 comes closest: CPUs: 4 needed, 2.5 of 16 free; memory: 24.0 GiB needed, 14.0 GiB of 64.0 GiB "
            "free",
            id="all that it lacks",
        ),
        pytest.param(
            [(host("a", cards="0"), holding(cpu="16")), (host("b"), holding(cpu="14"))],
            "node b comes closest: CPUs: 4 needed, 2 of 16 free",
            id="one thing is closer than two",
        ),
        pytest.param(
            [(host("a"), holding(cpu="15")), (host("b"), holding(memory="41Gi"))],
            "node b comes closest: memory: 24.0 GiB needed, 23.0 GiB of 64.0 GiB free",
            id="by the share of what is needed",
        ),
        pytest.param(
            [(host("a", unschedulable=True), {}), (host("b", cards="0"), {})],
            "node b comes closest: cards: 1 needed, 0 of 0 free",
            id="one that is open is closer",
        ),
        pytest.param(
            [
                (
                    host(
                        taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}], unschedulable=True
                    ),
                    {},
                )
            ],
            "node node-2 comes closest: it is cordoned",
            id="the taint of a cordon is the cordon",
        ),
        pytest.param(
            [(host(taints=[TAINT]), holding(cpu="14"))],
            "node node-2 comes closest: it has the taint team; CPUs: 4 needed, 2 of 16 free",
            id="a taint and a lack",
        ),
        pytest.param(
            [(host(), used([{"spec": {"containers": []}}] * 110))],
            "node node-2 comes closest: pods: 1 needed, 0 of 110 free",
            id="the kubelet takes no more pods",
        ),
        pytest.param(
            [(host(cpu="3"), holding(cpu="5"))],
            "node node-2 comes closest: CPUs: 4 needed, 0 of 3 free",
            id="over-full",
        ),
    ],
)
def test_the_node_that_comes_closest_is_named_with_what_it_lacks(nodes: Any, words: str) -> None:
    assert closest(nodes, wanted()) == words


def test_huge_pages_are_bytes() -> None:
    hardware = {**NVIDIA, "hostMemory": {"pinned": "8Gi", "hugepages": "2Mi"}}
    pod = children(model(hardware=hardware), engine_image="e")["Deployment"]["spec"]["template"]["spec"]
    told = closest([(host(), {})], pod)
    assert told == "node node-2 comes closest: hugepages-2Mi: 8.0 GiB needed, 0 B of 0 B free"


def test_a_pod_takes_what_the_scheduler_counts() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi"}}},
            {"resources": {"requests": {"cpu": "1"}}},
        ],
        "initContainers": [{"resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}, {}],
        "overhead": {"cpu": "250m"},
    }
    assert asked(spec) == {"cpu": 1750, "memory": 2000 * GIB, "pods": 1000}


def test_sidecars_go_on_beside_the_others() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    sidecar = container("1", restartPolicy="Always")
    assert asked({"containers": [container("500m")], "initContainers": [sidecar]})["cpu"] == 1500
    assert asked({"containers": [container("500m")], "initContainers": [sidecar, container("2")]})["cpu"] == 3000
    assert asked({"containers": [container("500m")], "initContainers": [container("2"), sidecar]})["cpu"] == 2000


def test_what_a_pod_asks_for_as_a_whole_counts_instead_of_its_containers_sum() -> None:
    containers = [{"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}}]
    spec = {"containers": containers, "resources": {"requests": {"cpu": "4", "memory": "8Gi"}}}
    assert asked(spec) == {"cpu": 4000, "memory": 8000 * GIB, "nvidia.com/gpu": 1000, "pods": 1000}


def test_what_is_short_by_little_shows_as_short() -> None:
    there = host(memory=f"{24 * 1024 - 1}Mi")
    assert closest([(there, {})], wanted()) == (
        "node node-2 comes closest: memory: 24.0 GiB needed, 23.9 GiB of 24.0 GiB free"
    )
    pod = {"containers": [{"resources": {"requests": {"example.com/units": "1000001"}}}]}
    there["status"]["allocatable"]["example.com/units"] = "1M"
    assert closest([(there, {})], pod) == (
        "node node-2 comes closest: example.com/units: 1000001 needed, 1000000 of 1000000 free"
    )


def test_a_pod_for_a_node_that_is_not_healthy_tolerates_that_very_taint() -> None:
    taint = {"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}
    assert tolerates({"operator": "Exists"}, taint)
    assert not tolerates({"key": UNHEALTHY_TAINT, "operator": "Exists", "effect": "NoExecute"}, taint)
