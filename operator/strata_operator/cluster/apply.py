"""How the cluster is changed: children and status by server-side apply, never an object that is not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_operator import tuning
from strata_operator.api import wire
from strata_operator.api.child import Child, is_created_by_us
from strata_operator.api.errors import (
    ForeignObjectError,
    LeavingError,
    MissingError,
    RefusedError,
    UnavailableError,
)
from strata_operator.api.model import API_VERSION, KIND, StrataModel
from strata_operator.api.names import EXPIRY_MANAGER, FIELD_MANAGER, TUNING_FINALIZER, wish_manager
from strata_operator.api.node import NODE_KIND, StrataNode
from strata_operator.cluster.client import Client
from strata_operator.plan import Action, foreign
from strata_operator.render import JOB, expiry, preflight_name


def check_owner(client: Client, model: StrataModel) -> None:
    """Raises MissingError where the very model (its uid) is gone, LeavingError where it is about to go.

    The cache may be behind, and what is created for an owner that is gone fights the garbage collector for ever.
    """
    metadata = client.get(KIND, model.namespace, model.name)["metadata"]
    if metadata["uid"] != model.uid:
        raise MissingError(f"{KIND} {model.name} is another one by now", status=404)
    if "deletionTimestamp" in metadata:
        raise LeavingError(f"{KIND} {model.name} is being deleted")


def apply_child(client: Client, model: StrataModel, action: Action) -> dict[str, Any]:
    """Carry one action out; returns the child as it is now.

    Raises ForeignObjectError where the name belongs to somebody else, RefusedError with the API server's words, and
    UnavailableError where it may work later: the object was replaced in between, for one.
    """
    if action.known is not None:
        return _apply_over(client, action.known, action.manifest)
    try:
        # An apply would take over an object of somebody else's that has the name; a creation never does.
        return client.create(action.kind, action.manifest, manager=FIELD_MANAGER)
    except UnavailableError as error:
        if error.status != 409:
            raise
    metadata = action.manifest["metadata"]
    try:
        there = Child.of(action.kind, client.get(action.kind, metadata["namespace"], metadata["name"]))
    except MissingError as error:
        raise UnavailableError(f"{action.kind} {metadata['name']} was there a moment ago; once more") from error
    if there.owner_uid != model.uid:
        raise ForeignObjectError(foreign(action.kind, there.name, there.owner).message)
    if there.deleting:
        raise UnavailableError(f"{action.kind} {there.name} is being deleted; it is created again once it is gone")
    return _apply_over(client, there, action.manifest)


def _apply_over(client: Client, there: Child, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Apply what belongs to us already.

    Fields that came with a creation are ours by an update. An apply would leave those that it does not name any more,
    so they are made ours by an apply first, as kubectl does it for objects of ``kubectl create``.
    """
    if there.is_created:
        metadata = client.get(there.kind, there.namespace, there.name)["metadata"]
        entries = [
            {**entry, "operation": "Apply"} if is_created_by_us(entry) else entry
            for entry in metadata.get("managedFields") or []
        ]
        patch = {"uid": there.uid, "resourceVersion": metadata["resourceVersion"], "managedFields": entries}
        client.merge(there.kind, there.namespace, there.name, {"metadata": patch})
    return client.apply(there.kind, _with_uid(manifest, there.uid), manager=FIELD_MANAGER, force=True)


def expire_preflight(client: Client, model: StrataModel, revision: str, node: str) -> None:
    """Let the Job that tries ``revision`` on ``node`` end and be deleted, if there is one of this model's.

    Raises UnavailableError where it may work later.
    """
    try:
        job = client.get(JOB, model.namespace, preflight_name(model, revision, node))
    except MissingError:
        return
    owners = job["metadata"].get("ownerReferences") or ()
    is_ours = any(owner.get("uid") == model.uid for owner in owners)
    wanted = expiry(model, revision, node, job["metadata"]["uid"])
    if is_ours and any(job["spec"].get(field) != value for field, value in wanted["spec"].items()):
        client.apply(JOB, wanted, manager=EXPIRY_MANAGER, force=True)


def apply_status(client: Client, key: tuple[str, str], uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
    """Write the whole status; returns the model as it is now. Raises MissingError where it is gone."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": key[0], "name": key[1], "uid": uid},
        "status": status,
    }
    return client.apply(KIND, manifest, manager=FIELD_MANAGER, force=True, subresource="status")


def apply_finalizer(client: Client, key: tuple[str, str], uid: str, *, present: bool) -> dict[str, Any]:
    """Add or remove the finalizer of node tuning; returns the model as it is now.

    Raises MissingError where it is gone, LeavingError where it is being deleted and takes no finalizer any more.
    """
    metadata: dict[str, Any] = {"namespace": key[0], "name": key[1], "uid": uid}
    if present:  # what was applied before and is left out now is removed
        metadata["finalizers"] = [TUNING_FINALIZER]
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    try:
        return client.apply(KIND, manifest, manager=FIELD_MANAGER, force=True)
    except RefusedError as error:
        if "no new finalizers can be added" in error.answer:
            raise LeavingError(str(error), status=error.status, answer=error.answer) from error
        raise


def apply_wish(client: Client, key: tuple[str, str], action: tuning.NodeAction) -> dict[str, Any]:
    """Write the model's wish into the StrataNode, or take it out; returns the StrataNode as it is now.

    Raises UnavailableError where the node was made anew or written in between. It is never created.
    """
    models = [wire.dump(action.wish)] if action.wish is not None else []
    manifest = {
        "apiVersion": API_VERSION,
        "kind": NODE_KIND,
        "metadata": {"name": action.node.name, "uid": action.node.uid},
        "spec": {"tuning": {"models": models}} if models else {},
    }
    answer = client.apply(NODE_KIND, manifest, manager=wish_manager(*key), force=True)
    name = tuning.key(*key)
    if tuning.held_wish(name, StrataNode.parse(answer)) == action.wish:
        return answer
    # Somebody wrote of the wish by hand what we do not: an apply leaves that, for it never was ours.
    others = [one for one in answer["spec"]["tuning"]["models"] if one["model"] != name]
    version = {"resourceVersion": answer["metadata"]["resourceVersion"]}
    patch = {"metadata": version, "spec": {"tuning": {"models": [*others, *models]}}}
    try:
        return client.merge(NODE_KIND, None, action.node.name, patch)
    except MissingError as error:  # which of a model would mean that the model is gone
        raise UnavailableError(f"{NODE_KIND} {action.node.name} was there a moment ago; once more") from error


def _with_uid(manifest: Mapping[str, Any], uid: str) -> dict[str, Any]:
    """The uid makes the API server refuse when the name stands for another object by now."""
    return {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
