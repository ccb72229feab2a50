from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strata_operator.api.child import Rollout
from strata_operator.api.conditions import Trouble
from strata_operator.api.node import StrataNode
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.cached import MOST_NODES, Cached, known, next_to_warm, preferred, weights_of
from strata_operator.fit import Verdict
from strata_operator.render import children
from tests.operator.samples import CPU, NVIDIA, child, model, node_object, pod, rollout

WEIGHTS = weights_of(model())


def status(*nodes: str, weights: str = WEIGHTS) -> dict[str, Any]:
    return {"cache": {"weights": weights, "nodes": list(nodes)}}


def live(revision: str, *, wanted: int, replicas: int = 0) -> Observed:
    made = child(children(model(), engine_image="e")["Deployment"])
    counts: Rollout = replace(rollout(replicas), revision=revision, wanted=wanted, preferred=("told-before",))
    return Observed({"Deployment": replace(made, rollout=counts)})


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"source": "hf://a/b"}},
        {"model": {"source": "hf://a/b", "revision": "v1"}},
        {"quantization": {"format": "int8"}},
        {"cache": {"hostPath": "/elsewhere"}},
    ],
    ids=["source", "revision", "format", "place"],
)
def test_other_weights(spec: dict[str, Any]) -> None:
    assert weights_of(model(**spec)) != WEIGHTS


def test_what_says_nothing_about_weights() -> None:
    assert weights_of(model("other", engine={"maxModelLen": 8}, replicas=3, hardware=NVIDIA)) == WEIGHTS


def test_ready_pods_and_good_preflights_of_the_revision_add_their_nodes() -> None:
    observed = Observed(
        {},
        pods=(
            replace(pod("a", ready=True), node="serves"),
            replace(pod("b", running=True), node="loads"),
            replace(pod("c", ready=True, revision="old"), node="of-before"),
        ),
        preflight=(
            replace(pod("d", role="preflight", succeeded=True), node="tried"),
            replace(pod("e", role="preflight", failed=True), node="failed"),
        ),
    )
    assert known(model(), "r1", observed, status("first")) == Cached(WEIGHTS, ("first", "serves", "tried"))


def test_a_record_of_other_weights_is_none() -> None:
    assert known(model(), "r1", Observed({}), status("a", weights="other")) == Cached(WEIGHTS)


@pytest.mark.parametrize(
    "edited", [None, 3, {"weights": WEIGHTS, "nodes": "a"}, {"weights": WEIGHTS, "nodes": [3]}, {}]
)
def test_what_was_edited_by_hand_counts_as_absent(edited: Any) -> None:
    assert Cached.of({"cache": edited}, WEIGHTS) == Cached(WEIGHTS)


def test_only_the_newest_nodes_are_kept() -> None:
    many = Cached(WEIGHTS).and_on(f"n{number}" for number in range(MOST_NODES + 3))
    assert many.nodes == tuple(f"n{number}" for number in range(3, MOST_NODES + 3))
    assert many.and_on(["n5"]) == many


@pytest.mark.parametrize(
    ("observed", "replicas", "expected"),
    [
        (Observed({}), 1, ("a",)),
        (live("old", wanted=1, replicas=1), 1, ("a",)),
        (live("r1", wanted=1), 1, ("told-before",)),
        (live("r1", wanted=0, replicas=1), 1, ("told-before",)),
        (live("r1", wanted=0), 1, ("a",)),
        (live("r1", wanted=0), 0, ("told-before",)),
    ],
    ids=["new", "another revision", "pods run", "the last pod ends", "woken up", "asleep"],
)
def test_pods_that_run_are_never_replaced_for_a_preference(
    observed: Observed, replicas: int, expected: tuple[str, ...]
) -> None:
    assert preferred(model(replicas=replicas), "r1", observed, status("a"), lambda weights: ()) == expected


def test_what_other_models_brought_to_a_node_is_preferred_too() -> None:
    others = {WEIGHTS: ["b", "a"]}
    assert preferred(model(), "r1", Observed({}), status("a"), lambda weights: others[weights]) == ("a", "b")


@pytest.mark.parametrize("hardware", [CPU, NVIDIA], ids=["cpu", "nvidia"])
def test_the_template_names_them_and_its_revision_is_the_same(hardware: dict[str, Any]) -> None:
    plain, told = (
        children(model(hardware=hardware), engine_image="e", prefer=prefer)["Deployment"] for prefer in ((), ("x", "y"))
    )
    assert plain["spec"]["template"]["metadata"] == told["spec"]["template"]["metadata"]
    found = child(told).rollout
    assert found is not None
    assert found.preferred == ("x", "y")
    assert child(plain).rollout != found


def test_a_preference_of_the_user_s_own_stands() -> None:
    affinity: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    spec: dict[str, Any] = {"podTemplate": {"spec": {"affinity": affinity}}}
    told = child(children(model(**spec), engine_image="e", prefer=("x",))["Deployment"]).rollout
    assert told is not None
    assert told.preferred == ()


def warming(node: str, **fields: Any) -> Pod:
    return replace(pod(f"w-{node}", role="warm"), **{"meant_for": node, "node": node, **fields})


LIKED = Verdict(True, "Fits", "", None, ("n2", "n1"))
NO_ROOM = Trouble("Unschedulable", "cordoned")


@pytest.mark.parametrize(
    ("pods", "nodes", "fit", "expected"),
    [
        ([], (), LIKED, "n1"),
        ([], ("n1",), LIKED, "n2"),
        ([], ("n1", "n2"), LIKED, None),
        ([warming("n1", running=True)], (), LIKED, None),
        ([warming("n1", failed=True)], (), LIKED, "n2"),
        ([warming("n1", trouble=NO_ROOM)], (), LIKED, "n2"),
        ([warming("n1", revision="old", running=True)], (), LIKED, "n1"),
        ([], tuple(f"o{n}" for n in range(MOST_NODES)), LIKED, None),
        ([], (), replace(LIKED, fits=False), None),
        ([], (), Verdict(None, "ShapeUnknown", ""), "gpu-1"),
    ],
    ids=["none", "one", "all", "at work", "failed", "waits", "of before", "record is full", "no fit", "fit unknown"],
)
def test_what_is_warmed_next(pods: list[Pod], nodes: tuple[str, ...], fit: Verdict, expected: str | None) -> None:
    observed = Observed({}, preflight=tuple(pods), nodes=(StrataNode.parse(node_object()),))
    there = Cached(WEIGHTS, nodes)
    gpu_model = model(hardware=NVIDIA, cache={"keepWarm": True})
    assert next_to_warm(gpu_model, "r1", observed, fit, there) == expected
    assert next_to_warm(model(hardware=NVIDIA), "r1", observed, fit, there) is None
