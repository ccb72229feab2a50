from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from strata_operator.api.child import Rollout
from strata_operator.api.conditions import Trouble
from strata_operator.api.node import StrataNode
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.fit import Verdict
from strata_operator.render import children
from strata_operator.rollout import (
    Failure,
    Memory,
    Served,
    after_look,
    after_success,
    has_room,
    respite,
    starts_first,
    stuck,
)
from tests.operator.samples import CPU, NVIDIA, child, gpu, model, node_object, pod, rollout

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SERVED = Served("old", 1, {"model": {"source": "builtin://a"}})
FAILURE = Failure("new", 2, "EngineFailed", "no such model")
ENGINE = Trouble("EngineFailed", "no such model")
ROOMLESS = Trouble("Unschedulable", "0/1 nodes are available")


def degraded(reason: str, seconds: float, message: str = "") -> dict[str, Any]:
    """A status that has been Degraded for so long."""
    since = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"type": "Degraded", "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}
    return {"conditions": [told]}


@pytest.mark.parametrize(
    ("memory", "wanted", "trouble", "status", "expected", "again"),
    [
        pytest.param(Memory(), "new", ENGINE, degraded("EngineFailed", 999), Memory(), None, id="nothing served"),
        pytest.param(Memory(SERVED), "new", None, {}, Memory(SERVED), None, id="takes its time"),
        pytest.param(Memory(SERVED), "new", ENGINE, {}, Memory(SERVED), 60, id="trouble has just begun"),
        pytest.param(
            Memory(SERVED), "new", ENGINE, degraded("EngineFailed", 59), Memory(SERVED), 1, id="not yet for long"
        ),
        pytest.param(
            Memory(SERVED),
            "new",
            ENGINE,
            degraded("EngineFailed", 60),
            Memory(SERVED, FAILURE),
            None,
            id="failed",
        ),
        pytest.param(
            Memory(SERVED), "new", ENGINE, degraded("ImagePullFailed", 999), Memory(SERVED), 60, id="another trouble"
        ),
        pytest.param(
            Memory(SERVED), "new", ROOMLESS, degraded("Unschedulable", 61), Memory(SERVED), 239, id="room may come free"
        ),
        pytest.param(
            Memory(SERVED),
            "new",
            ROOMLESS,
            degraded("Unschedulable", 300, "node a comes closest"),
            Memory(SERVED, Failure("new", 2, "Unschedulable", "node a comes closest")),
            None,
            id="no room came free; the node that came closest stays named",
        ),
        pytest.param(
            Memory(SERVED),
            "old",
            ENGINE,
            degraded("EngineFailed", 999),
            Memory(SERVED),
            None,
            id="what served fails",
        ),
        pytest.param(Memory(SERVED, FAILURE), "new", None, {}, Memory(SERVED, FAILURE), None, id="it stays failed"),
        pytest.param(Memory(SERVED, FAILURE), "newer", None, {}, Memory(SERVED), None, id="another spec wins at once"),
        pytest.param(Memory(SERVED, FAILURE), "old", None, {}, Memory(SERVED), None, id="the old spec, by hand"),
    ],
)
def test_when_a_revision_has_failed(
    memory: Memory, wanted: str, trouble: Trouble | None, status: dict[str, Any], expected: Memory, again: float | None
) -> None:
    assert after_look(memory, wanted, 2, trouble, status, NOW) == (expected, again)


def test_what_serves_is_remembered_once() -> None:
    first = after_success(Memory(), "old", 1, SERVED.spec)
    assert first == Memory(SERVED)
    assert after_success(first, "old", 7, {"model": {}, "replicas": 9}) is first  # more replicas are no revision
    assert after_success(first, "new", 2, {"model": {}}) == Memory(Served("new", 2, {"model": {}}))
    assert after_success(Memory(SERVED, FAILURE), "old", 2, {"model": {}}) == Memory(SERVED, FAILURE)


@pytest.mark.parametrize("memory", [Memory(), Memory(SERVED), Memory(SERVED, FAILURE)])
def test_memory_survives_in_the_status(memory: Memory) -> None:
    assert Memory.of({"rollout": memory.dump()}) == memory


@pytest.mark.parametrize("edited", [{"served": "x"}, {"served": {"revision": "a"}}, {"failed": {"reason": "b"}}])
def test_memory_that_cannot_be_read_is_none(edited: dict[str, Any]) -> None:
    assert Memory.of({"rollout": edited}) == Memory()


OLD = pod("old", revision="old", ready=True)


def seen(live: Rollout | None, *pods: Pod, nodes: int = 1, used: int = 0, cards: int = 1) -> Observed:
    """A Deployment, pods, and nodes with cards of which so many are used on the first one."""
    manifest = children(model(), engine_image="e")["Deployment"]
    there = {"Deployment": replace(child(manifest), rollout=live)} if live else {}
    gpus = [gpu(uuid=f"GPU-{n}") for n in range(cards)]
    found = tuple(StrataNode.parse(node_object(f"gpu-{n}", gpus=gpus)) for n in range(nodes))
    return Observed(there, pods, nodes=found, used_gpus={"gpu-0": used})


def live(revision: str, *, surge: bool = False) -> Rollout:
    return replace(rollout(1), revision=revision, surge=surge)


UNPLACED = replace(pod("new", revision="new", trouble=ROOMLESS), node=None)
ANYWHERE = Verdict(None, "ShapeUnknown", "")


@pytest.mark.parametrize(
    ("spec", "observed", "expected"),
    [
        pytest.param({"hardware": NVIDIA}, seen(None), False, id="the first roll-out"),
        pytest.param({"hardware": NVIDIA}, seen(live("old"), OLD, used=1), False, id="the only card is in use"),
        pytest.param({"hardware": NVIDIA}, seen(live("old"), OLD, used=1, cards=2), True, id="a second card is free"),
        pytest.param({"hardware": NVIDIA}, seen(live("old"), OLD, used=1, nodes=2), True, id="another node is free"),
        pytest.param({"hardware": NVIDIA}, seen(live("old"), OLD, nodes=0), False, id="no agent tells of a card"),
        pytest.param({"hardware": NVIDIA}, seen(live("old"), nodes=2), False, id="nothing serves that could go on"),
        pytest.param(
            {"hardware": NVIDIA},
            seen(live("old"), replace(OLD, deleting=True), nodes=2),
            False,
            id="what served ends",
        ),
        pytest.param({"hardware": CPU}, seen(live("old"), OLD, nodes=0), True, id="a CPU model"),
        pytest.param({"hardware": CPU}, seen(live("new", surge=True), OLD), True, id="under way, started first"),
        pytest.param({"hardware": CPU}, seen(live("new"), OLD), False, id="under way, stopped first"),
        pytest.param({"hardware": CPU}, seen(live("new", surge=True), OLD, UNPLACED), False, id="there is no room"),
        pytest.param({"hardware": CPU}, seen(live("new", surge=True), UNPLACED), True, id="nothing left to stop"),
        pytest.param(
            {"hardware": NVIDIA, "rollout": {"strategy": "rolling"}},
            seen(live("new", surge=True), OLD, UNPLACED, used=1),
            True,
            id="told: rolling",
        ),
        pytest.param(
            {"hardware": CPU, "rollout": {"strategy": "recreate"}},
            seen(live("old"), OLD),
            False,
            id="told: recreate",
        ),
    ],
)
def test_what_comes_first(spec: dict[str, Any], observed: Observed, expected: bool) -> None:
    assert starts_first(model(**spec), "new", observed, ANYWHERE) is expected


def test_once_a_roll_out_is_done_its_strategy_stays() -> None:
    """Cards that come free or are taken change nothing: they would be writes."""
    for used in (0, 1):
        for surge in (True, False):
            observed = seen(live("new", surge=surge), pod("p", revision="new", ready=True), used=used)
            assert starts_first(model(hardware=NVIDIA), "new", observed, ANYWHERE) is surge


def test_a_free_card_on_a_node_that_does_not_fit_is_none() -> None:
    observed = seen(live("old"), OLD, used=1, nodes=2)
    assert has_room(model(hardware=NVIDIA), observed, Verdict(True, "Fits", "", None, ("gpu-1",)))
    assert not has_room(model(hardware=NVIDIA), observed, Verdict(True, "Fits", "", None, ("gpu-0",)))


def refused(number: int, since: str = "2026-01-01T11:59:00Z") -> list[Pod]:
    return [replace(pod(f"f{n}", revision="new", failed=True), since=since) for n in range(number)]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], None, id="none"),
        pytest.param(refused(4), None, id="a few"),
        pytest.param(refused(5), 240, id="one after the other"),
        pytest.param([*refused(9), *refused(1, "2026-01-01T11:59:30Z")], 270, id="the newest counts"),
        pytest.param(refused(5, "2026-01-01T11:55:00Z"), None, id="tried again after a while"),
        pytest.param([*refused(9), pod("p", revision="new", ready=True)], None, id="one of them serves"),
        pytest.param([replace(one, revision="old") for one in refused(9)], None, id="of another revision"),
    ],
)
def test_pods_that_nodes_refuse_are_not_made_without_end(pods: list[Pod], expected: float | None) -> None:
    assert respite(pods, "new", NOW) == expected


@pytest.mark.parametrize(
    ("ends_by", "expected"),
    [("", None), ("2026-01-01T12:00:30Z", None), ("2026-01-01T11:59:30Z", None), ("2026-01-01T11:58:59Z", "PodStuck")],
)
def test_a_pod_that_does_not_end_is_named(ends_by: str, expected: str | None) -> None:
    found = stuck([OLD, replace(pod("late", deleting=True), ends_by=ends_by)], NOW)
    assert (found.reason if found else None) == expected
    if found is not None:
        assert "pod late on node node-1" in found.message
        assert "kubectl delete pod late -n ns --force" in found.message
