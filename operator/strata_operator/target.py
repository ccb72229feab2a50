"""What is to be served now: the newest spec, or after its failure what served before; pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from strata_operator import rollout
from strata_operator.api.conditions import Trouble
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
Render = Callable[
    [StrataModel, bool], Children
]  # children of a model; whether a new pod starts before an old one stops


@dataclass(frozen=True, slots=True)
class Target:
    """``model`` is whose ``desired`` children are. ``hold``: why no pod of them may start. ``look_again``: seconds."""

    model: StrataModel
    desired: Children
    revision: str
    hold: Trouble | None
    memory: Memory
    look_again: float | None = None


def aim(
    model: StrataModel,
    observed: Observed,
    fit: Verdict,
    status: Mapping[str, Any],
    *,
    render: Render,
    now: datetime,
) -> Target:
    """``model`` is the newest spec, ``status`` what was last written of it.

    Raises InvalidSpecError where the newest spec cannot be rendered.
    """
    newest = render(model, False)
    revision, hold = revision_of(newest["Deployment"]), fit.trouble if model.wanted_replicas else None
    trouble = _trouble_of(model, newest, revision, observed) if hold is None else None
    memory, look_again = rollout.after_look(Memory.of(status), revision, model.generation, trouble, status, now)
    if memory.failure is not None:
        before = _before(model, memory, render)
        if before is not None:
            return _with_strategy(before, observed, fit, memory, render)
        memory = replace(memory, failure=None)  # there is nothing to go back to
    return replace(_with_strategy(model, observed, fit, memory, render), hold=hold, look_again=look_again)


def _trouble_of(model: StrataModel, newest: Children, revision: str, observed: Observed) -> Trouble | None:
    """Of the newest spec's pods, once it is under way."""
    deployment = observed.children.get("Deployment")
    if deployment is None or deployment.rollout is None or deployment.rollout.revision != revision:
        return None
    return find_trouble(model, newest, observed, Plan(()))


def _with_strategy(model: StrataModel, observed: Observed, fit: Verdict, memory: Memory, render: Render) -> Target:
    desired = render(model, False)
    revision = revision_of(desired["Deployment"])
    if rollout.starts_first(model, revision, observed, fit):
        desired = render(model, True)
    return Target(model, desired, revision, None, memory)


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
    return replace(before, replicas=model.replicas, suspend=model.suspend, port=model.port)
