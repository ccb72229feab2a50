from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from strata_operator.api.child import Rollout
from strata_operator.api.conditions import Condition, Trouble, find
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod
from strata_operator.eviction import Stranded
from strata_operator.fit import Verdict
from strata_operator.plan import Plan
from strata_operator.render import children, revision_of
from strata_operator.rollout import Failure, Memory, Served
from strata_operator.status import Outcome, refused, status
from strata_operator.target import Facts, Target
from strata_operator.trouble import find_trouble
from tests.operator.samples import NVIDIA, child, model, pod, rollout

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = Plan(())
NO_MEMORY = Memory()
FITS = Verdict(True, "Fits", "fits on gpu-1", {"node": "gpu-1", "vramBytes": 1})
UNTUNED = Condition("NodeTuned", True, "NothingWanted", "nothing")
TUNED = Condition("NodeTuned", True, "Tuned", "in force on gpu-1")
REFUSED = Condition("NodeTuned", False, "Refused", "gpu-1: 40 W")
TOO_LARGE = Verdict(False, "NotEnoughVram", "needs 61.3 GiB of VRAM")


def revision(**spec: Any) -> str:
    return revision_of(children(model(**spec), engine_image="e")["Deployment"])


def told(
    counts: Rollout | None,
    *pods: Pod,
    plan: Plan = NOTHING,
    previous: dict[str, Any] | None = None,
    now: datetime = NOW,
    stale_hash: bool = False,
    fit: Verdict = FITS,
    tuned: Condition = UNTUNED,
    memory: Memory = NO_MEMORY,
    **spec: Any,
) -> dict[str, Any]:
    """The status for a Deployment with those counts (None: not there) and pods, which are of the current revision."""
    made = model(**spec)
    desired = children(made, engine_image="e")
    there = {kind: child(manifest) for kind, manifest in desired.items()}
    if counts is None:
        del there["Deployment"]
    else:
        there["Deployment"] = replace(there["Deployment"], rollout=counts)
    if stale_hash:
        there["Deployment"] = replace(there["Deployment"], hash="of before")
    current = tuple(replace(one, revision=revision(**spec)) if one.revision == "r1" else one for one in pods)
    seen = Observed(there, current)
    trouble = find_trouble(made, desired, seen, plan)
    target = Target(made, desired, revision(**spec), None, memory)
    facts = Facts({"status": previous or {}}, made, seen, fit, now)
    return status(facts, Outcome(target, plan, trouble, Stranded(), tuned))


def verdict(made: dict[str, Any], kind: str) -> tuple[str, str]:
    condition = find(made, kind)
    return condition["status"], condition["reason"]


FAILED = Trouble("EngineFailed", "no such model")
UNSCHEDULABLE = Trouble("Unschedulable", "0/1 nodes are available")
UNPLACED = replace(pod("new", trouble=UNSCHEDULABLE), node=None)
FAILED_BEFORE = Memory(Served("r0", 1, {"model": {}}), Failure("rX", 2, "EngineFailed", "no such model"))


@pytest.mark.parametrize(
    ("made", "ready", "progressing", "degraded"),
    [
        pytest.param(
            told(rollout(1), pod(ready=True)),
            ("True", "Serving"),
            ("False", "Complete"),
            ("False", "AsExpected"),
            id="serves",
        ),
        pytest.param(
            told(None), ("False", "Progressing"), ("True", "Scaling"), ("False", "AsExpected"), id="nothing there yet"
        ),
        pytest.param(
            told(rollout(1, ready=0), pod(running=True)),
            ("False", "Progressing"),
            ("True", "Loading"),
            ("False", "AsExpected"),
            id="loads",
        ),
        pytest.param(
            told(rollout(1, ready=0), pod()),
            ("False", "Progressing"),
            ("True", "Creating"),
            ("False", "AsExpected"),
            id="is being created",
        ),
        pytest.param(
            told(rollout(1, ready=0), replace(pod(), node=None)),
            ("False", "Progressing"),
            ("True", "Scheduling"),
            ("False", "AsExpected"),
            id="waits for the scheduler",
        ),
        pytest.param(
            told(rollout(1, ready=0), pod(trouble=FAILED)),
            ("False", "EngineFailed"),
            ("False", "EngineFailed"),
            ("True", "EngineFailed"),
            id="the engine fails",
        ),
        pytest.param(
            told(rollout(0, failure="exceeded quota")),
            ("False", "PodsRefused"),
            ("False", "PodsRefused"),
            ("True", "PodsRefused"),
            id="pods are refused",
        ),
        pytest.param(
            told(rollout(0), replicas=0),
            ("False", "ScaledToZero"),
            ("False", "Complete"),
            ("False", "AsExpected"),
            id="scaled to zero",
        ),
        pytest.param(
            told(rollout(0), suspend=True, replicas=2),
            ("False", "Suspended"),
            ("False", "Complete"),
            ("False", "AsExpected"),
            id="suspended",
        ),
        pytest.param(
            told(rollout(2, updated=1, ready=2), pod(ready=True), pod("old", revision="r0", ready=True), replicas=2),
            ("False", "Progressing"),
            ("True", "Scaling"),
            ("False", "AsExpected"),
            id="half rolled out",
        ),
        pytest.param(
            told(rollout(1), pod("old", revision="r0", ready=True), stale_hash=True),
            ("False", "Progressing"),
            ("True", "Scaling"),
            ("False", "AsExpected"),
            id="only the revision before is ready",
        ),
        pytest.param(
            told(replace(rollout(1), generation=2), pod(ready=True)),
            ("False", "Progressing"),
            ("True", "Scaling"),
            ("False", "AsExpected"),
            id="counts of the generation before",
        ),
        pytest.param(
            told(rollout(1), pod(ready=True), plan=Plan((), blocked=(Trouble("NameConflict", "Service m"),))),
            ("False", "NameConflict"),
            ("False", "NameConflict"),
            ("True", "NameConflict"),
            id="a child is not ours",
        ),
        pytest.param(
            told(None, plan=Plan((), held=TOO_LARGE.trouble), fit=TOO_LARGE),
            ("False", "NotEnoughVram"),
            ("False", "NotEnoughVram"),
            ("True", "NotEnoughVram"),
            id="fits nowhere",
        ),
        pytest.param(
            told(rollout(1), pod(ready=True), plan=Plan((), held=TOO_LARGE.trouble), fit=TOO_LARGE),
            ("False", "NotEnoughVram"),
            ("False", "NotEnoughVram"),
            ("True", "NotEnoughVram"),
            id="the old spec is served, the new one fits nowhere",
        ),
        pytest.param(
            told(rollout(1), pod(ready=True), fit=TOO_LARGE),
            ("True", "Serving"),
            ("False", "Complete"),
            ("False", "AsExpected"),
            id="serves, though a node changed since",
        ),
        pytest.param(
            told(None, plan=Plan((), waiting=("Service m",))),
            ("False", "Progressing"),
            ("True", "Waiting"),
            ("False", "AsExpected"),
            id="waits for the garbage collector",
        ),
        pytest.param(
            told(rollout(1, ready=0), pod("old", revision="r0", trouble=FAILED), pod(running=True)),
            ("False", "Progressing"),
            ("True", "Loading"),
            ("False", "AsExpected"),
            id="the repaired revision wins over the failing one",
        ),
        pytest.param(
            told(rollout(1, ready=0), pod("evicted", failed=True, trouble=FAILED), pod(running=True)),
            ("False", "Progressing"),
            ("True", "Loading"),
            ("False", "AsExpected"),
            id="another pod took the evicted one's place",
        ),
        pytest.param(
            told(rollout(0), pod("evicted", failed=True, trouble=FAILED)),
            ("False", "EngineFailed"),
            ("False", "EngineFailed"),
            ("True", "EngineFailed"),
            id="no pod took the evicted one's place",
        ),
        pytest.param(
            told(rollout(1, ready=0), pod("old", deleting=True), replace(pod(trouble=UNSCHEDULABLE), node=None)),
            ("False", "Progressing"),
            ("True", "Scheduling"),
            ("False", "AsExpected"),
            id="waits for what the old pod still holds",
        ),
        pytest.param(
            told(rollout(2, ready=1), pod("old", revision="r0", ready=True), UNPLACED),
            ("False", "Progressing"),
            ("True", "Scheduling"),
            ("False", "AsExpected"),
            id="waits for a pod that is about to be stopped",
        ),
        pytest.param(
            told(replace(rollout(2, ready=1), surge=True), pod("old", revision="r0", ready=True), UNPLACED),
            ("False", "Unschedulable"),
            ("False", "Unschedulable"),
            ("True", "Unschedulable"),
            id="has no room beside the old pod",
        ),
        pytest.param(
            told(rollout(2, ready=1), pod("old", revision="r0", ready=True), UNPLACED, replicas=2),
            ("False", "Unschedulable"),
            ("False", "Unschedulable"),
            ("True", "Unschedulable"),
            id="has no room though a pod was stopped for it",
        ),
        pytest.param(
            told(rollout(1, ready=0), pod("old", running=True), memory=FAILED_BEFORE),
            ("False", "RolledBack"),
            ("True", "RollingBack"),
            ("True", "RolledBack"),
            id="what served before is being put back",
        ),
        pytest.param(
            told(rollout(1), pod("old", ready=True), memory=FAILED_BEFORE),
            ("False", "RolledBack"),
            ("False", "RolledBack"),
            ("True", "RolledBack"),
            id="what served before serves again",
        ),
    ],
)
def test_conditions(
    made: dict[str, Any], ready: tuple[str, str], progressing: tuple[str, str], degraded: tuple[str, str]
) -> None:
    assert verdict(made, "Ready") == ready
    assert verdict(made, "Progressing") == progressing
    assert verdict(made, "Degraded") == degraded
    assert verdict(made, "Accepted") == ("True", "Accepted")


def test_no_node_names_the_cards_and_the_scheduler_s_words() -> None:
    made = told(rollout(1, ready=0), replace(pod(trouble=UNSCHEDULABLE), node=None), hardware=NVIDIA)
    message = find(made, "Degraded")["message"]
    assert "NVIDIA-GeForce-RTX-3090 or NVIDIA-GeForce-RTX-4090" in message
    assert message.endswith("0/1 nodes are available")


@pytest.mark.parametrize(
    "aftermath",
    [
        ", no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful.",
        ". no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found.",
        ". preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
    ],
)
def test_what_the_scheduler_thought_of_preemption_is_left_out(aftermath: str) -> None:
    said = f"0/1 nodes are available: 1 Insufficient cpu{aftermath}"
    made = told(rollout(1, ready=0), replace(pod(trouble=Trouble("Unschedulable", said)), node=None))
    assert find(made, "Degraded")["message"].endswith("the scheduler says: 0/1 nodes are available: 1 Insufficient cpu")


def test_replicas_that_serve_are_told_beside_what_keeps_others() -> None:
    made = told(rollout(2, ready=1), pod(ready=True), replace(UNPLACED, revision="r1"), replicas=2)
    ready = find(made, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Unschedulable")
    assert ready["message"] == f"1 of 2 replicas serve; {find(made, 'Degraded')['message']}"
    none = told(rollout(2, ready=0), pod(trouble=FAILED), replicas=2)
    assert find(none, "Ready")["message"] == "no such model"


def test_a_claim_that_is_not_there_is_to_be_made() -> None:
    said = '0/1 nodes are available: persistentvolumeclaim "nope" not found. not found'
    made = told(rollout(1, ready=0), replace(pod(trouble=Trouble("Unschedulable", said)), node=None))
    assert find(made, "Degraded")["message"] == (
        'PersistentVolumeClaim "nope" not found in namespace ns; create it, or name another in the spec'
    )


def test_a_secret_that_is_not_there_is_to_be_made_and_keeps_its_reason() -> None:
    trouble = Trouble("ContainerRefused", 'secret "nohub" not found')
    source = {"source": "hf://ORG/NAME", "secretRef": {"name": "nohub"}}
    degraded = find(told(rollout(1, ready=0), pod(trouble=trouble), model=source), "Degraded")
    assert (degraded["reason"], degraded["message"]) == (
        "ContainerRefused",
        'Secret "nohub" not found in namespace ns; create it, or name another in spec.model.secretRef',
    )


def test_the_reason_told_does_not_depend_on_the_names_of_pods() -> None:
    one, other = Trouble("EngineFailed", "a"), Trouble("OutOfMemory", "b")
    first = told(rollout(2, ready=0), pod("x", trouble=one), pod("y", trouble=other), replicas=2)
    second = told(rollout(2, ready=0), pod("x", trouble=other), pod("y", trouble=one), replicas=2)
    assert first == second


def test_counts_selector_and_url() -> None:
    made = told(rollout(2, ready=1), replicas=2)
    assert {key: made[key] for key in ("observedGeneration", "replicas", "readyReplicas", "selector", "url")} == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 1,
        "selector": "strata.ai/model=m,app.kubernetes.io/name=strata-engine",
        "url": "http://m.ns.svc:8000/v1",
    }


@pytest.mark.parametrize(
    ("fit", "status"),
    [(FITS, "True"), (TOO_LARGE, "False"), (Verdict(None, "ShapeUnknown", "not known"), "Unknown")],
)
def test_whether_it_fits(fit: Verdict, status: str) -> None:
    made = told(rollout(1), fit=fit)
    assert find(made, "Fits")["status"] == status
    assert find(made, "Fits")["message"] == fit.message
    assert ("plan" in made) == (fit.plan is not None)


def test_a_roll_back_says_of_what_and_why() -> None:
    made = told(rollout(1), pod("old", ready=True), memory=FAILED_BEFORE)
    assert "generation 2 failed (EngineFailed: no such model)" in find(made, "Degraded")["message"]
    assert Memory.of(made) == FAILED_BEFORE
    assert "rollout" not in told(rollout(1))


def test_progress_counts_the_pods_of_this_spec() -> None:
    pods = [pod("old", revision="r0", ready=True), pod("new", ready=True), pod("next", running=True)]
    made = told(rollout(3, updated=2, ready=2), *pods, replicas=3)
    assert find(made, "Progressing")["message"].endswith("1 of 3 pods of this spec are ready")


def test_nodes_are_counted_in_order() -> None:
    pods = [replace(pod(name), node=node) for name, node in (("a", "n2"), ("b", "n1"), ("c", "n2"), ("d", None))]
    made = told(rollout(4), *pods, replace(pod("e", failed=True), node="n3"), replicas=4)
    assert made["nodes"] == [{"name": "n1", "pods": 1}, {"name": "n2", "pods": 2}]


def test_nothing_to_write_while_nothing_changes() -> None:
    first = told(rollout(1), pod(ready=True))
    assert told(rollout(1), pod(ready=True), previous=first, now=NOW + timedelta(days=1)) == first


def test_a_refused_spec_keeps_the_counts() -> None:
    before = told(rollout(1), pod(ready=True))
    obj = {"metadata": {"generation": 2}, "status": before}
    made = refused(InvalidSpecError("spec.x is not known"), obj, now=NOW)
    assert (made["readyReplicas"], made["observedGeneration"]) == (1, 2)
    assert verdict(made, "Accepted") == ("False", "InvalidSpec")
    assert find(made, "Ready")["message"] == "spec.x is not known"


def test_a_model_at_zero_says_what_its_next_start_costs() -> None:
    never = find(told(rollout(0), replicas=0), "Ready")["message"]
    assert never == (
        "spec.replicas is 0, so no pod runs; kubectl scale stratamodel/m -n ns --replicas=1 starts one; how long a "
        "start takes was not measured yet; the weights have to be fetched and converted"
    )
    served = told(rollout(1), pod(ready=True, created="2026-01-01T00:00:00Z", ready_since="2026-01-01T00:00:14Z"))
    asleep = told(rollout(0), replicas=0, previous=served)
    words = "the last start took 14 s from the pod's creation until it was ready; the converted weights are on node-1"
    assert find(asleep, "Ready")["message"].endswith(words)
    suspended = told(rollout(0), suspend=True, previous=served)
    assert find(suspended, "Ready")["message"].endswith(words)
