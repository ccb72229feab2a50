"""From what is wanted and what is there to what must be done; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strata_operator.api.child import Child
from strata_operator.api.conditions import PREFLIGHT, PREFLIGHT_FAILED, Trouble
from strata_operator.api.model import KIND, StrataModel
from strata_operator.api.names import HASH_ANNOTATION
from strata_operator.api.observed import Observed

Manifest = Mapping[str, Any]
HELD_KIND = "Deployment"  # what pods are made of
_WAITS = (PREFLIGHT, PREFLIGHT_FAILED)  # of a new spec that may have begun already, and goes no further


@dataclass(frozen=True, slots=True)
class Action:
    """One child to apply, or to delete. ``restore`` is an update that only puts back what somebody else changed."""

    verb: Literal["create", "update", "restore", "delete"]
    manifest: Manifest
    known: Child | None  # the object to be changed; None where it has to be created
    lost: tuple[str, ...] = ()  # paths of fields that somebody else took

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in order; ``blocked`` is why some of it cannot be done, ``waiting`` what has to go first.

    ``held`` is why the pods are left as they are. ``unfetched``: a node to which a Job was to bring weights, and why
    that Job has no pod.
    """

    actions: tuple[Action, ...]
    blocked: tuple[Trouble, ...] = ()
    waiting: tuple[str, ...] = ()
    held: Trouble | None = None
    unfetched: tuple[str, Trouble] | None = None


def plan(
    model: StrataModel, desired: Mapping[str, Manifest], observed: Observed, *, hold: Trouble | None = None
) -> Plan:
    """Apply only what differs: absent, rendered differently, or changed by somebody else.

    A child that is being deleted is left alone until it is gone, and one that is not ours is never touched. ``hold`` is
    why no pod of this spec may start: what pods are made of is then left as it is, and what runs goes on.
    """
    actions: list[Action] = []
    blocked: list[Trouble] = []
    waiting: list[str] = []
    held: Trouble | None = None
    for kind, manifest in desired.items():
        if blocked or waiting:
            break  # a pod must not start with a ServiceAccount that is not ours
        child = observed.children.get(kind)
        if hold and kind == HELD_KIND and (child is None or _differs(child, manifest) or hold.reason in _WAITS):
            held = hold
        elif child is None:
            actions.append(Action("create", manifest, None))
        elif child.deleting or (child.owner_uid != model.uid and child.owner == f"{KIND}/{model.name}"):
            # Its owner was a model of this name that exists no more: the garbage collector is about to take it away.
            waiting.append(f"{kind} {child.name}")
        elif child.owner_uid != model.uid:
            blocked.append(foreign(kind, child.name, child.owner))
        elif _differs(child, manifest):
            actions.append(Action("update", manifest, child))
        elif hash(child.owned_fields) != observed.applied_fields.get(kind):
            # Were it the very set that our last apply left, then an admission webhook has the last word, not a person.
            lost = lost_fields(manifest, json.loads(child.owned_fields))
            if lost:
                actions.append(Action("restore", manifest, child, lost))
    return Plan(tuple(actions), tuple(blocked), tuple(waiting), held)


def _differs(child: Child, manifest: Manifest) -> bool:
    return bool(child.hash != manifest["metadata"]["annotations"][HASH_ANNOTATION])


def foreign(kind: str, name: str, owner: str | None) -> Trouble:
    """A child's name is taken by an object that is not ours."""
    whose = f"belongs to {owner}" if owner else "has no owner reference to this model"
    return Trouble(
        "NameConflict",
        f"{kind} {name} exists and {whose}, so it is left alone; delete or rename it, or give the model another name",
    )


def lost_fields(manifest: Manifest, owned: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths that the manifest sets and that ``owned``, a managedFields entry (fieldsV1), does not hold.

    Server-side apply takes a field from its owner when somebody else changes or removes it. So drift shows in an
    object's metadata alone, whatever defaults the server filled in, and across a restart of the operator.
    """
    body = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    body["metadata"] = {k: v for k, v in manifest["metadata"].items() if k not in ("name", "namespace", "uid")}
    if not owned:
        return ("",)  # our entry itself is gone
    return tuple(_lost(body, owned, ""))


def _lost(wanted: Any, owned: Mapping[str, Any], path: str) -> Iterator[str]:
    if not owned:
        return  # a scalar, or a list or table that is owned as a whole
    if isinstance(wanted, Mapping):
        for key, value in wanted.items():
            inner = owned.get(f"f:{key}")
            if inner is None:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, inner, f"{path}.{key}")
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        for number, element in enumerate(wanted):
            inner = _element(element, owned)
            if inner is None:
                yield f"{path}[{number}]"
            else:
                yield from _lost(element, inner, f"{path}[{number}]")


def _element(element: Any, owned: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The entry of a list's element: ``v:VALUE`` in a set, ``k:{keys}`` in a list of tables."""
    for name, inner in owned.items():
        tag, _, text = name.partition(":")
        if tag == "v" and json.loads(text) == element:
            return dict(inner)
        # Keys that the manifest leaves out were defaulted by the server.
        if tag == "k" and all(element.get(key, value) == value for key, value in json.loads(text).items()):
            return dict(inner)
    return None
