from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strata_operator.api.node import PagesWish, StrataNode, Wish
from strata_operator.api.pod import Pod
from strata_operator.tuning import NodeAction, actions, desired, unsettled, verdict, wish
from tests.operator.samples import NVIDIA, model, node_object, pod

POWER = {"limitWatts": 280, "maxTemperatureC": {"core": 83}}
PAGES = {"accelerator": "nvidia", "cpu": 4, "hostMemory": {"pinned": "3Gi", "hugepages": "2Mi"}}
WISH = Wish("ns/m", power_limit_watts=280, max_core_temperature_c=83)
OTHER = Wish("ns/other", power_limit_watts=250)


def on(node: str | None, **fields: Any) -> Pod:
    return replace(pod(f"on-{node}", **fields), node=node)


def node(name: str, *wishes: Wish, settled: bool = True, **status: Any) -> StrataNode:
    """A StrataNode whose agent has acted on the wishes, or has not yet."""
    made = StrataNode.parse(node_object(name, **status))
    said = {"type": "Tuned", "status": "True", "reason": "InForce", "message": "all in force"}
    return replace(
        made,
        generation=3,
        spec=replace(made.spec, tuning=replace(made.spec.tuning, models=wishes)),
        status=replace(made.status, observed_generation=3 if settled else 2),
        conditions=made.conditions or (said,),
    )


CPU_PAGES = {"accelerator": "cpu", "cpu": 2, "memory": "3Gi", "hostMemory": {"pinned": "3Gi", "hugepages": "2Mi"}}
SMALL = node("small", gpus=[], memory_gib=5)


@pytest.mark.parametrize(
    ("spec", "pods", "nodes", "expected"),
    [
        pytest.param({}, [on("a")], [], [], id="nothing is wanted"),
        pytest.param({"power": POWER}, [on("a")], [], ["a"], id="where the pod is"),
        pytest.param({"power": POWER}, [on(None)], [], [], id="no node yet"),
        pytest.param({"power": POWER}, [on("a", deleting=True), on("b")], [], ["a", "b"], id="a pod on its way out"),
        pytest.param({"power": POWER}, [on("a", failed=True)], [], [], id="a pod that the node refused"),
        pytest.param({"power": POWER}, [on(None)], [node("a", WISH)], ["a"], id="between two pods of a roll-out"),
        pytest.param({"power": POWER}, [on("b")], [node("a", WISH)], ["b"], id="it came elsewhere"),
        pytest.param({"power": POWER, "suspend": True}, [], [node("a", WISH)], [], id="suspended"),
        pytest.param({"hardware": PAGES}, [], [], ["fit-1"], id="huge pages come before the pod"),
        pytest.param({"hardware": PAGES, "replicas": 2}, [on("fit-2")], [], ["fit-1", "fit-2"], id="one more"),
        pytest.param({"hardware": PAGES}, [on("fit-2")], [], ["fit-2"], id="all have a node"),
        pytest.param(
            {"hardware": CPU_PAGES},
            [on(None)],
            [node("carded"), SMALL, node("plain", gpus=[])],
            ["plain"],
            id="no card",
        ),
    ],
)
def test_what_is_wanted_of_which_nodes(
    spec: dict[str, Any], pods: list[Pod], nodes: list[StrataNode], expected: list[str]
) -> None:
    made = desired(model(**{"hardware": NVIDIA, **spec}), pods, ("fit-1", "fit-2"), nodes)
    assert list(made) == expected


def test_a_wish_is_what_the_spec_says() -> None:
    assert wish(model(hardware=NVIDIA, power=POWER), replicas=1) == WISH
    pages = wish(model(hardware=PAGES), replicas=2)
    assert pages == Wish("ns/m", hugepages=(PagesWish("2Mi", 3072),))


@pytest.mark.parametrize(
    ("wanted", "nodes", "expected"),
    [
        pytest.param({}, [node("a"), node("b", OTHER)], [], id="nothing wanted, nothing there"),
        pytest.param({"a": WISH}, [node("a", OTHER)], [("a", WISH)], id="new"),
        pytest.param({"a": WISH}, [node("a", OTHER, WISH)], [], id="there already"),
        pytest.param({"a": WISH}, [node("a", replace(WISH, power_limit_watts=300))], [("a", WISH)], id="changed"),
        pytest.param({}, [node("a", WISH, OTHER)], [("a", None)], id="not wanted any more"),
        pytest.param({"gone": WISH}, [node("a")], [], id="a node without agent"),
    ],
)
def test_only_what_differs_is_written(
    wanted: dict[str, Wish], nodes: list[StrataNode], expected: list[tuple[str, Wish | None]]
) -> None:
    found = actions("ns/m", wanted, nodes)
    assert [(action.node.name, action.wish) for action in found] == expected
    assert all(isinstance(action, NodeAction) for action in found)


REFUSED = {"type": "Tuned", "status": "False", "reason": "Refused", "message": "40 W is below 100 W"}


def enforced(owner: str) -> dict[str, Any]:
    return {"gpus": [{"uuid": "GPU-1", "settings": [{"name": "powerLimitWatts", "requested": 250, "model": owner}]}]}


LOWER = enforced("ns/other")


@pytest.mark.parametrize(
    ("wanted", "nodes", "expected", "words"),
    [
        pytest.param({}, [], (None, "NoNode"), "no pod has a node", id="no pod"),
        pytest.param({"a": WISH}, [], (False, "NoAgent"), "install strata-agent", id="no agent"),
        pytest.param({"a": WISH}, [node("a", settled=False)], (None, "Applying"), "agent of a", id="not yet"),
        pytest.param({"a": WISH}, [node("a", WISH)], (True, "Tuned"), "in force on a", id="in force"),
        pytest.param(
            {"a": WISH}, [node("a", conditions=[REFUSED])], (False, "Refused"), "a: 40 W is below 100 W", id="refused"
        ),
        pytest.param(
            {"a": WISH},
            [node("a", settled=False, conditions=[REFUSED])],
            (None, "Applying"),
            "agent of a",
            id="refused of before",
        ),
        pytest.param(
            {"a": WISH},
            [node("a", enforced=LOWER)],
            (True, "Tuned"),
            "on a powerLimitWatts is 250, the lower wish of ns/other",
            id="another model wants less",
        ),
    ],
)
def test_the_condition(
    wanted: dict[str, Wish], nodes: list[StrataNode], expected: tuple[bool | None, str], words: str
) -> None:
    found = verdict(model(hardware=NVIDIA, power=POWER), wanted, nodes)
    assert (found.status, found.reason) == expected
    assert words in found.message


def test_a_model_without_wishes_is_tuned_as_it_is() -> None:
    assert verdict(model(), {}, []).reason == "NothingWanted"


HELD = {"gpus": [{"uuid": "GPU-1", "powerLimitMilliwatts": 300_000}]}


@pytest.mark.parametrize(
    ("there", "is_undone"),
    [
        pytest.param(node("a"), True, id="all that is wanted is in force"),
        pytest.param(node("a", settled=False), False, id="the agent has not looked yet"),
        pytest.param(node("a", conditions=[REFUSED], originals=HELD), False, id="it cannot give back"),
        pytest.param(node("a", conditions=[REFUSED]), True, id="something else is wrong, and all is given back"),
        pytest.param(
            node("a", OTHER, conditions=[REFUSED], originals=HELD, enforced=LOWER),
            True,
            id="another model's wish is refused",
        ),
        pytest.param(
            node("a", OTHER, conditions=[REFUSED], originals=HELD, enforced=enforced("ns/m")),
            False,
            id="ours is still in force",
        ),
    ],
)
def test_who_has_not_undone_it_yet(there: StrataNode, is_undone: bool) -> None:
    others = [node("without"), node("elsewhere", settled=False)]
    assert unsettled("ns/m", ["a", "without", "gone"], [there, *others]) == (() if is_undone else ("a",))


def test_a_suspended_node_has_undone_it_once_nothing_is_left_to_give_back() -> None:
    for held, expected in ((HELD, ("a",)), ({}, ())):
        made = node("a", WISH, conditions=[REFUSED], originals=held)
        suspended = replace(made, spec=replace(made.spec, suspend=True))
        assert unsettled("ns/m", ["a"], [suspended]) == expected
