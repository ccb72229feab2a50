"""What the operator keeps of the cluster's objects: children and pods, slim and frozen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FIELD_MANAGER = "strata-operator"
MODEL_LABEL = "strata.ai/model"  # on every child and pod; its value is the children's name
HASH_ANNOTATION = "strata.ai/hash"  # on every child: of all that was applied
REVISION_ANNOTATION = "strata.ai/revision"  # on every pod: of the pod template
ENGINE = "engine"  # the container's name

_MESSAGE_LIMIT = 1000  # characters of an engine's or the kubelet's words that a condition quotes


@dataclass(frozen=True, slots=True)
class Rollout:
    """A Deployment's status: how far the pods are."""

    generation: int
    observed_generation: int
    replicas: int  # pods of all revisions
    updated: int  # pods of the newest revision
    ready: int  # ready pods of all revisions
    failure: str | None  # why the API server refused to create pods


@dataclass(frozen=True, slots=True)
class Child:
    """A child as its watch shows it."""

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: int
    owner_uid: str | None
    owner: str | None  # "Kind/name" of the controller
    hash: str | None
    owned_fields: str  # our managedFields entry as JSON: a field that somebody else changed is missing from it
    other_managers: tuple[str, ...]
    deleting: bool
    rollout: Rollout | None = None

    @classmethod
    def of(cls, kind: str, obj: Mapping[str, Any]) -> Child:
        """Read a whole object or its PartialObjectMetadata."""
        metadata = obj["metadata"]
        owner = next((ref for ref in metadata.get("ownerReferences") or [] if ref.get("controller")), None)
        ours: Mapping[str, Any] = {}
        others = set()
        for entry in metadata.get("managedFields") or []:
            if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply":
                ours = entry.get("fieldsV1") or {}
            elif not entry.get("subresource"):
                others.add(str(entry.get("manager")))
        return cls(
            kind=kind,
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=int(metadata["resourceVersion"]),
            owner_uid=owner["uid"] if owner else None,
            owner=f"{owner['kind']}/{owner['name']}" if owner else None,
            hash=(metadata.get("annotations") or {}).get(HASH_ANNOTATION),
            owned_fields=json.dumps(ours, separators=(",", ":")),
            other_managers=tuple(sorted(others)),
            deleting="deletionTimestamp" in metadata,
            rollout=_rollout(obj) if kind == "Deployment" else None,
        )


def _rollout(obj: Mapping[str, Any]) -> Rollout:
    status = obj.get("status") or {}
    failures = [condition.get("message", "") for condition in _conditions(status, "ReplicaFailure", "True")]
    return Rollout(
        generation=obj["metadata"].get("generation", 0),
        observed_generation=status.get("observedGeneration", 0),
        replicas=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        failure=failures[0] if failures else None,
    )


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something does not go on: a CamelCase reason and words for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A model's pod as its watch shows it."""

    namespace: str
    name: str
    uid: str
    resource_version: int
    model: str  # value of MODEL_LABEL
    revision: str | None
    node: str | None
    since: str  # when it got its node, RFC 3339; "" before that
    ready: bool
    running: bool  # the engine's container runs
    deleting: bool
    failed: bool  # for good: the node refused or evicted it, and another pod takes its place
    trouble: Trouble | None

    @property
    def creating(self) -> bool:
        """On a node, but the container has not started and the pod itself says no reason."""
        return self.node is not None and not (self.running or self.deleting or self.failed or self.trouble)

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Pod:
        """Read a whole pod."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        containers: list[dict[str, Any]] = status.get("containerStatuses") or []
        container = next((one for one in containers if one.get("name") == ENGINE), {})
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=int(metadata["resourceVersion"]),
            model=(metadata.get("labels") or {}).get(MODEL_LABEL, ""),
            revision=(metadata.get("annotations") or {}).get(REVISION_ANNOTATION),
            node=(obj.get("spec") or {}).get("nodeName"),
            since=next((c.get("lastTransitionTime", "") for c in _conditions(status, "PodScheduled", "True")), ""),
            ready=bool(container.get("ready")),
            running="running" in (container.get("state") or {}),
            deleting="deletionTimestamp" in metadata,
            failed=status.get("phase") == "Failed",
            trouble=_trouble(status, container),
        )


def _trouble(status: Mapping[str, Any], container: Mapping[str, Any]) -> Trouble | None:
    """The deepest reason that the pod tells, None while it is ready or goes on."""
    if container.get("ready"):
        return None
    if status.get("phase") == "Failed":
        why = f"{status.get('reason') or 'Failed'}: {status.get('message') or 'no message'}"
        return Trouble("PodFailed", f"the node refused or evicted a pod: {shorten(why)}")
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _WAITING:
        return Trouble(_WAITING[waiting["reason"]], _waiting_message(container, waiting))
    # A container that is up again keeps the reason of its end until it is ready: it may be the next turn of a loop.
    if ended is not None:
        return _ended(ended)
    for condition in _conditions(status, "PodScheduled", "False"):
        if condition.get("reason") == "Unschedulable":
            return Trouble("Unschedulable", shorten(condition.get("message") or ""))
    return None


def _conditions(status: Mapping[str, Any], kind: str, value: str) -> list[Mapping[str, Any]]:
    return [c for c in status.get("conditions") or [] if (c.get("type"), c.get("status")) == (kind, value)]


_WAITING = {
    "ErrImagePull": "ImagePullFailed",
    "ImagePullBackOff": "ImagePullFailed",
    "InvalidImageName": "ImagePullFailed",
    "ErrImageNeverPull": "ImagePullFailed",
    "CreateContainerConfigError": "ContainerRefused",
    "CreateContainerError": "ContainerRefused",
    "RunContainerError": "ContainerRefused",
}


def _waiting_message(container: Mapping[str, Any], waiting: Mapping[str, Any]) -> str:
    # The kubelet alternates between "ErrImagePull: X" and "Back-off pulling image ...: ErrImagePull: X": keep X alone.
    detail = re.sub(r"^Back-off pulling image [^ ]+: ?", "", waiting.get("message") or "")
    detail = re.sub(r"^ErrImagePull: ?", "", detail)
    return shorten(f"image {container.get('image')}: {detail or waiting['reason']}")


def _ended(ended: Mapping[str, Any]) -> Trouble:
    if ended.get("reason") == "OOMKilled":
        return Trouble(
            "OutOfMemory",
            "the engine was killed because it used more than spec.hardware.memory; raise it, or serve less",
        )
    said = shorten((ended.get("message") or "").strip())
    code = ended.get("exitCode")
    return Trouble(
        "EngineFailed", said or f"the engine ended with exit code {code} and left no message; see kubectl logs"
    )


def warned(events: Iterable[Mapping[str, Any]]) -> Trouble | None:
    """What keeps a container from being created: the newest of a pod's events, if that is a warning."""

    def when(event: Mapping[str, Any]) -> str:
        return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")

    newest = max(events, key=when, default={})
    if newest.get("type") != "Warning":
        return None
    message = shorten(newest.get("message") or "")
    if 'volume "model"' in message and "hostPath type check failed" in message:
        return Trouble("SourceNotFound", f"the node that was chosen does not have spec.model.source: {message}")
    return Trouble(newest.get("reason") or "PodFailed", message)


def shorten(text: str) -> str:
    """The end of the text where it is long: the last lines of a log say why."""
    return text if len(text) <= _MESSAGE_LIMIT else "…" + text[1 - _MESSAGE_LIMIT :]


@dataclass(frozen=True, slots=True)
class Observed:
    """All that the cluster shows of one model."""

    children: Mapping[str, Child]  # by kind
    pods: tuple[Pod, ...] = ()  # in the order of their names
    applied_fields: Mapping[str, str] = field(default_factory=dict)  # Child.owned_fields after our last apply, by kind
