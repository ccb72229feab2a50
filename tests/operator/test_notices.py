from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.conditions import Trouble
from strata_operator.api.event import Event
from strata_operator.notices import changes, deeds
from strata_operator.plan import Action, Plan
from tests.operator.samples import pod, rollout
from tests.operator.test_status import FAILED, REFUSED, TUNED, told


def action(verb: Any, kind: str, *lost: str) -> Action:
    return Action(verb, {"kind": kind}, None, lost)


SERVING = told(rollout(1), pod(ready=True))
LOADING = told(rollout(1, ready=0), pod(running=True))
FAILING = told(rollout(1, ready=0), pod(trouble=FAILED))
WITH_TUNING = told(rollout(1), pod(ready=True), tuned=TUNED)
WITH_REFUSAL = told(rollout(1), pod(ready=True), tuned=REFUSED)
CONFLICT = told(None, plan=Plan((), blocked=(Trouble("NameConflict", "Service m"),)))


@pytest.mark.parametrize(
    ("actions", "previous", "expected"),
    [
        pytest.param([action("create", "Service")], {}, [], id="first time"),
        pytest.param([action("create", "Service")], SERVING, [("Normal", "Restored")], id="made again"),
        pytest.param([action("create", "Service")], CONFLICT, [("Normal", "Created")], id="name is free now"),
        pytest.param(
            [action("create", "PodDisruptionBudget")],
            {**SERVING, "observedGeneration": 0},
            [("Normal", "Created")],
            id="wanted by a new spec",
        ),
        pytest.param([action("update", "Deployment")], SERVING, [("Normal", "Updated")], id="new spec"),
        pytest.param([action("restore", "Service", ".spec.ports")], SERVING, [("Normal", "Restored")], id="drift"),
        pytest.param([], SERVING, [], id="nothing"),
    ],
)
def test_events_of_deeds(actions: list[Action], previous: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert [(event.type, event.reason) for event in deeds(actions, previous, 1)] == expected


def test_an_event_of_drift_names_the_field() -> None:
    assert deeds([action("restore", "Service", ".spec.ports[0].targetPort")], SERVING, 1) == [
        Event("Normal", "Restored", "put back spec.ports[0].targetPort of Service, changed by somebody else")
    ]


@pytest.mark.parametrize(
    ("new", "previous", "expected"),
    [
        pytest.param(LOADING, {}, [("Normal", "Created")], id="begins"),
        pytest.param(told(rollout(0), replicas=0), {}, [("Normal", "Created")], id="begins asleep"),
        pytest.param(SERVING, {}, [("Normal", "Ready")], id="is ready at once"),
        pytest.param(FAILING, {}, [("Warning", "EngineFailed")], id="fails at once"),
        pytest.param(SERVING, LOADING, [("Normal", "Ready")], id="gets ready"),
        pytest.param(SERVING, SERVING, [], id="stays ready"),
        pytest.param(FAILING, LOADING, [("Warning", "EngineFailed")], id="fails"),
        pytest.param(FAILING, FAILING, [], id="goes on failing"),
        pytest.param(CONFLICT, FAILING, [("Warning", "NameConflict")], id="fails for another reason"),
        pytest.param(LOADING, FAILING, [], id="is tried again"),
        pytest.param(WITH_TUNING, SERVING, [("Normal", "NodeTuned")], id="nodes are tuned"),
        pytest.param(WITH_TUNING, WITH_TUNING, [], id="nodes stay tuned"),
        pytest.param(WITH_REFUSAL, WITH_TUNING, [("Warning", "Refused")], id="a node cannot be tuned any more"),
        pytest.param(SERVING, WITH_TUNING, [], id="nothing is wanted any more"),
    ],
)
def test_events_of_changes(new: dict[str, Any], previous: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert [(event.type, event.reason) for event in changes(new, previous, ["Service"])] == expected
