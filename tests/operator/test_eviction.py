from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strata_operator.api.conditions import Trouble
from strata_operator.api.node import StrataNode
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.eviction import Stranded, stranded
from strata_operator.fit import Verdict
from tests.operator.samples import CPU, NVIDIA, gpu, model, node_object, pod

UNJUDGED = Verdict(None, "ShapeUnknown", "not known")
FAILS = pod("fails", trouble=Trouble("EngineFailed", "no CUDA device"), gpus=1)
ILL = {"type": "Healthy", "status": "False", "reason": "GpuLost", "message": "XID 79"}
NO_ROOM = Stranded(stays="fails stays there, for no other node has a matching card free", waits=True)
OWN_WILL = Stranded(stays="fails stays there, for the spec tolerates the taint strata.ai/gpu-unhealthy")


GONE = {"type": "GpuLost", "status": "True", "reason": "OffTheBus", "message": "XID 79"}
SERVES = pod(ready=True, gpus=1)


def node(name: str, *conditions: dict[str, str], cards: int = 1) -> StrataNode:
    gpus = [gpu(uuid=f"GPU-{number}") for number in range(cards)]
    return StrataNode.parse(node_object(name, gpus=gpus, conditions=list(conditions)))


LOST, WELL = node("node-1", ILL), node("node-2")
BARE, ONE_OF_TWO = node("node-1", ILL, GONE), node("node-1", ILL, GONE, cards=2)


@pytest.mark.parametrize(
    ("pods", "nodes", "expected"),
    [
        pytest.param([FAILS], [LOST, WELL], Stranded(FAILS), id="another node has a card free"),
        pytest.param([FAILS], [LOST], NO_ROOM, id="there is no other node"),
        pytest.param([FAILS], [LOST, node("node-2", ILL)], NO_ROOM, id="the other node is not well either"),
        pytest.param(
            [FAILS, replace(pod("b", ready=True, gpus=1), node="node-2")], [LOST, WELL], NO_ROOM, id="its card is taken"
        ),
        pytest.param([FAILS], [node("node-1"), WELL], Stranded(), id="it fails where all is well"),
        pytest.param([SERVES], [LOST, WELL], Stranded(), id="it serves all the same"),
        pytest.param([SERVES], [BARE, WELL], Stranded(SERVES), id="it does not know yet that it cannot serve"),
        pytest.param([SERVES], [ONE_OF_TWO, WELL], Stranded(), id="it may have the other card"),
        pytest.param([FAILS], [ONE_OF_TWO, WELL], Stranded(FAILS), id="it has not the other card"),
        pytest.param([pod(running=True)], [LOST, WELL], Stranded(), id="it is still loading"),
        pytest.param([replace(FAILS, failed=True)], [LOST, WELL], Stranded(), id="another takes its place already"),
        pytest.param([FAILS, pod("b", deleting=True)], [LOST, WELL], Stranded(), id="one is on its way out"),
        pytest.param([FAILS, replace(pod("b"), node=None)], [LOST, WELL], Stranded(), id="one looks for a place"),
        pytest.param([FAILS, replace(FAILS, name="b")], [LOST, WELL], Stranded(FAILS), id="one of two goes first"),
    ],
)
def test_who_leaves_a_node_that_is_not_healthy(pods: list[Pod], nodes: list[StrataNode], expected: Stranded) -> None:
    used = {one.node: one.gpus for one in pods if one.node}
    seen = Observed({}, tuple(pods), nodes=tuple(nodes), used_gpus=used)
    assert stranded(model(hardware={**NVIDIA, "gpus": ["RTX4090"]}), {}, seen, UNJUDGED) == expected


def test_a_pod_leaves_for_a_node_that_it_can_have_alone() -> None:
    met = {"node-2": "is cordoned", "node-3": ""}
    wanted = model(hardware={**NVIDIA, "gpus": ["RTX4090"]})
    seen = Observed({}, (FAILS,), nodes=(LOST, WELL))
    found = stranded(wanted, {}, seen, UNJUDGED, met.__getitem__)
    assert found == replace(NO_ROOM, stays=f"{NO_ROOM.stays}: node-2 is cordoned")
    more = replace(seen, nodes=(LOST, WELL, node("node-3")))
    assert stranded(wanted, {}, more, UNJUDGED, met.__getitem__) == Stranded(FAILS)


def test_a_cpu_model_does_not_mind() -> None:
    assert stranded(model(hardware=CPU), {}, Observed({}, (FAILS,), nodes=(LOST, WELL)), UNJUDGED) == Stranded()


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        pytest.param({"operator": "Exists"}, OWN_WILL, id="of everything"),
        pytest.param({"key": "strata.ai/gpu-unhealthy", "operator": "Exists"}, OWN_WILL, id="of it"),
        pytest.param({"key": "strata.ai/gpu-unhealthy", "effect": "NoSchedule"}, OWN_WILL, id="of its empty value"),
        pytest.param({"key": "strata.ai/gpu-unhealthy", "value": "x"}, Stranded(FAILS), id="of another value"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, Stranded(FAILS), id="of another effect"),
        pytest.param({"key": "nvidia.com/gpu", "operator": "Exists"}, Stranded(FAILS), id="of another taint"),
    ],
)
def test_a_pod_that_might_come_back_to_the_very_node_stays(toleration: dict[str, Any], expected: Stranded) -> None:
    seen = Observed({}, (FAILS,), nodes=(LOST, WELL))
    wanted = model(hardware={**NVIDIA, "gpus": ["RTX4090"]})
    assert stranded(wanted, {"tolerations": [toleration]}, seen, UNJUDGED) == expected
