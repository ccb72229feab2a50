"""What a person is told in events: how two statuses differ, and what was done; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata_operator.api import conditions
from strata_operator.api.conditions import APPLY_REFUSED, DEGRADED, FITS, NODE_TUNED, PREFLIGHT, READY, ROUTED
from strata_operator.api.event import Event
from strata_operator.api.names import NODE_ANNOTATION, ROLE_LABEL
from strata_operator.api.reach import ROUTE_KINDS
from strata_operator.plan import HELD_KIND, Action
from strata_operator.render import JOB, WARM_ROLE

Status = Mapping[str, Any]
# Reasons for which a child may not have been made yet.
_NEVER_MADE = ("InvalidSpec", "NameConflict", APPLY_REFUSED)


def changes(new: Status, previous: Status, made: Sequence[str] = ()) -> list[Event]:
    """What is different for a person between two statuses. ``made``: kinds of the children that are there."""
    told = []
    degraded, before = conditions.find(new, DEGRADED), conditions.find(previous, DEGRADED)
    if degraded.get("status") == "True" and (before.get("status"), before.get("reason")) != (
        "True",
        degraded["reason"],
    ):
        told.append(Event("Warning", degraded["reason"], degraded["message"]))
    told += _tuning_changes(conditions.find(new, NODE_TUNED), conditions.find(previous, NODE_TUNED))
    told += _route_changes(conditions.find(new, ROUTED), conditions.find(previous, ROUTED))
    ready = conditions.find(new, READY)
    if ready.get("status") == "True" and conditions.find(previous, READY).get("status") != "True":
        told.append(Event("Normal", "Ready", ready["message"]))
    elif made and not previous and degraded.get("status") != "True":
        told.append(Event("Normal", "Created", f"created {', '.join(made)}"))
    return told


def _tuning_changes(new: Mapping[str, Any], before: Mapping[str, Any]) -> list[Event]:
    """That nodes are tuned as wished for, or cannot be."""
    if (new["status"], new["reason"]) == (before.get("status"), before.get("reason")):
        return []
    if new["status"] == "False":
        return [Event("Warning", new["reason"], new["message"])]
    return [Event("Normal", "NodeTuned", new["message"])] if new["reason"] == "Tuned" else []


def _route_changes(new: Mapping[str, Any], before: Mapping[str, Any]) -> list[Event]:
    """That a route leads to the model, or why it does not; nothing of one that does not want any."""
    if (new.get("status"), new.get("reason")) == (before.get("status"), before.get("reason")):
        return []
    if new.get("status") == "False":
        return [Event("Warning", new["reason"], new["message"])]
    return [Event("Normal", new["reason"], new["message"])] if new.get("status") == "True" else []


def _started(pod: Mapping[str, Any]) -> Event:
    """Of a Job, by its pods' metadata."""
    if pod["labels"][ROLE_LABEL] == WARM_ROLE:
        node = pod["annotations"][NODE_ANNOTATION]
        return Event("Normal", "Warming", f"fetches and converts the weights on {node} ahead of any pod there")
    return Event("Normal", PREFLIGHT, "tries image and weights of the new spec before a pod is stopped for it")


def deeds(actions: Sequence[Action], previous: Status, generation: int) -> list[Event]:
    """What was done for the spec of that generation. ``actions`` are those that succeeded, ``previous`` the status
    before them.

    Of what was made for a new model the change of its status tells.
    """
    told = [_started(one.manifest["spec"]["template"]["metadata"]) for one in actions if one.kind == JOB]
    made = [action.kind for action in actions if action.verb == "create" and action.kind != JOB]
    was_held = conditions.find(previous, FITS).get("status") == "False" and made == [HELD_KIND]
    had_no_way = conditions.find(previous, ROUTED).get("status") == "False" and set(made) <= set(ROUTE_KINDS)
    was_unwanted = bool(previous) and previous.get("observedGeneration") != generation
    if made and (
        was_held or had_no_way or was_unwanted or conditions.find(previous, DEGRADED).get("reason") in _NEVER_MADE
    ):
        told.append(Event("Normal", "Created", f"created {', '.join(made)}"))
    elif made and previous:
        told.append(Event("Normal", "Restored", f"created {', '.join(made)} again: gone without our doing"))
    changed = [action.kind for action in actions if action.verb == "update"]
    if changed:
        told.append(Event("Normal", "Updated", f"updated {', '.join(changed)}"))
    removed = [action.kind for action in actions if action.verb == "delete"]
    if removed:
        told.append(Event("Normal", "Removed", f"removed {', '.join(removed)}, which the spec asks for no more"))
    for action in actions:
        if action.verb == "restore":
            fields = ", ".join(path.lstrip(".") or "all fields" for path in action.lost)
            told.append(Event("Normal", "Restored", f"put back {fields} of {action.kind}, changed by somebody else"))
    return told
