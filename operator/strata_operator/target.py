"""What is to be served now: the newest spec, or after its failure what served before; pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from strata_operator import cached, missing, preflight, rollout
from strata_operator.api.child import engine_image
from strata_operator.api.conditions import UNSCHEDULABLE, Trouble
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.fit import Verdict
from strata_operator.plan import Manifest, Plan
from strata_operator.render import revision_of
from strata_operator.rollout import Memory
from strata_operator.trouble import find_trouble

log = logging.getLogger(__name__)

Children = Mapping[str, Manifest]
# Children of a model; whether a new pod starts before an old one stops.
Render = Callable[[StrataModel, bool], Children]


@dataclass(frozen=True, slots=True)
class Facts:
    """What one round of a model knows: ``obj`` as the API server has it, and ``model``, its newest spec."""

    obj: Mapping[str, Any]
    model: StrataModel
    observed: Observed
    fit: Verdict
    now: datetime

    @property
    def status(self) -> Mapping[str, Any]:
        """What was last written."""
        status: Mapping[str, Any] = self.obj["status"]
        return status


@dataclass(frozen=True, slots=True)
class Target:
    """``model`` is whose ``desired`` children are. ``hold``: why no pod of them may start. ``look_again``: seconds."""

    model: StrataModel
    desired: Children
    revision: str
    hold: Trouble | None
    memory: Memory
    look_again: float | None = None
    preflight_node: str | None = None  # where a preflight of the revision has to be started
    warm_node: str | None = None  # where the weights have to be brought ahead of any pod


def aim(facts: Facts, render: Render) -> Target:
    """Raises InvalidSpecError where the newest spec cannot be rendered."""
    goal = _goal(facts, render)
    there = cached.known(goal.model, goal.revision, facts.observed, facts.status)
    node = cached.next_to_warm(goal.model, goal.revision, facts.observed, facts.fit, there)
    return replace(goal, warm_node=node)


def _goal(facts: Facts, render: Render) -> Target:
    model, observed, status, now = facts.model, facts.observed, facts.status, facts.now
    newest = render(model, False)
    revision = revision_of(newest["Deployment"])
    # What runs already needs no leave to go on, and to stop needs no room.
    hold = facts.fit.trouble if model.wanted_replicas and _live_revision(observed) != revision else None
    trouble = _trouble_of(model, newest, revision, observed) if hold is None else None
    memory, look_again = rollout.after_look(Memory.of(status), revision, model.generation, trouble, status, now)
    if memory.failure is not None:
        before = _before(model, memory, render)
        desired = newest if before is None else render(before, False)
        if before is not None and revision_of(desired["Deployment"]) != revision:
            goal = Target(before, desired, revision_of(desired["Deployment"]), None, memory)
            return _with_strategy(goal, facts, render)
        # There is nothing to go back to. What served may be this very spec, of an operator that had another image.
        memory = replace(memory, failure=None)
    goal = Target(model, newest, revision, hold, memory, look_again)
    goal = _with_strategy(_after_preflight(goal, facts, render), facts, render)
    pause = rollout.respite(observed.pods, revision, now)
    if pause is None:
        return goal
    # What is asked for stays; the Deployment alone has no replicas meanwhile.
    return replace(goal, desired=render(replace(model, suspend=True), False), look_again=pause)


def _after_preflight(goal: Target, facts: Facts, render: Render) -> Target:
    """The goal, held up while a pod that serves would be stopped for one of which image or weights may be missing."""
    observed = facts.observed
    if goal.hold is not None or not goal.model.wanted_replicas:
        return goal
    if rollout.starts_first(goal.model, goal.revision, facts.observed, facts.fit):
        return goal
    node = preflight.node_to_try(goal.revision, observed)
    if node is None or goal.memory.passed == goal.revision:
        return goal
    before = _before(goal.model, goal.memory, render)
    if before is not None and preflight.brings_nothing(goal.model, before) and _has_live_image(goal, observed):
        return goal
    found = preflight.look(observed.preflight, goal.revision, node)
    if found.trouble is not None:
        found = replace(found, trouble=missing.explained(goal.model, found.trouble) or found.trouble)
    if found.state == "passed":
        return replace(goal, memory=replace(goal.memory, passed=goal.revision))
    return replace(goal, hold=preflight.hold(found, node), preflight_node=node if found.state == "absent" else None)


def _has_live_image(goal: Target, observed: Observed) -> bool:
    """Whether the pods run the goal's image already: that of specs which name none comes with the operator."""
    deployment = observed.children.get("Deployment")
    live = deployment.rollout if deployment is not None else None
    return live is None or live.image == engine_image(goal.desired["Deployment"]["spec"]["template"]["spec"])


def _live_revision(observed: Observed) -> str | None:
    """What the Deployment's pods are made of now."""
    deployment = observed.children.get("Deployment")
    return deployment.rollout.revision if deployment is not None and deployment.rollout is not None else None


def _trouble_of(model: StrataModel, newest: Children, revision: str, observed: Observed) -> Trouble | None:
    """Of the newest spec's pods, once it is under way."""
    deployment = observed.children.get("Deployment")
    if deployment is None or deployment.rollout is None or deployment.rollout.revision != revision:
        return None
    if deployment.rollout.paused:
        return None  # it is not the spec's
    trouble = find_trouble(model, newest, observed, Plan(()))
    stops_first_then = deployment.rollout.surge and model.strategy == "auto"
    return None if trouble is not None and trouble.reason == UNSCHEDULABLE and stops_first_then else trouble


def _with_strategy(goal: Target, facts: Facts, render: Render) -> Target:
    """While a preflight is under way, what has begun stays as it is: a new pod may wait for room beside the old one."""
    deployment = facts.observed.children.get("Deployment")
    live = deployment.rollout if deployment is not None else None
    is_begun = goal.hold is not None and live is not None and live.revision == goal.revision and live.surge
    if is_begun or rollout.starts_first(goal.model, goal.revision, facts.observed, facts.fit):
        return replace(goal, desired=render(goal.model, True))
    return goal


def _before(model: StrataModel, memory: Memory, render: Render) -> StrataModel | None:
    """The model as it was served last, with the replicas of now; None where nothing was, or this version cannot."""
    if memory.served is None:
        return None
    metadata = {"name": model.name, "namespace": model.namespace, "uid": model.uid, "generation": model.generation}
    try:
        before = StrataModel.parse({"metadata": metadata, "spec": memory.served.spec})
        render(before, False)
    except InvalidSpecError as error:
        log.warning("%s/%s: what was served before cannot be any more: %s", model.namespace, model.name, error)
        return None
    endpoint = replace(before.endpoint, port=model.endpoint.port)
    return replace(before, replicas=model.replicas, suspend=model.suspend, endpoint=endpoint)
