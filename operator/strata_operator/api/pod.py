"""What the operator keeps of a model's pods, slim and frozen, and the troubles that they tell of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.conditions import STORAGE_FAILED, UNSCHEDULABLE, Trouble, having, reason, shorten
from strata_operator.api.figures import Loading, Traffic
from strata_operator.api.names import (
    CACHE,
    ENGINE,
    GPU_RESOURCE,
    MODEL_LABEL,
    NODE_ANNOTATION,
    REVISION_ANNOTATION,
    ROLE_LABEL,
)
from strata_operator.api.quantity import parse_quantity

_STORAGE_EXIT_CODE = 3  # of the engine's, see docs/cli.md


@dataclass(frozen=True, slots=True)
class Pod:
    """A model's pod as its watch shows it."""

    namespace: str
    name: str
    uid: str
    resource_version: int
    model: str  # the children's name; "" for a pod of nobody here, whatever its label says
    revision: str | None
    node: str | None
    since: str  # when it got its node, RFC 3339; "" before that
    ready: bool
    running: bool  # the engine's container runs
    deleting: bool
    failed: bool  # for good: the node refused or evicted it, and another pod takes its place
    trouble: Trouble | None
    gpus: int = 0  # that it holds, or waits for
    role: str = ""  # value of ROLE_LABEL; "" for one that serves
    meant_for: str = ""  # value of NODE_ANNOTATION
    succeeded: bool = False  # it ran to its end, and all went well
    ends_by: str = ""  # when its grace period ends, RFC 3339; "" for one that is not being deleted
    address: str = ""  # its IP; "" before it has one
    created: str = ""  # RFC 3339
    ready_since: str = ""  # RFC 3339; "" while it is not
    restarted: bool = False  # the engine's container was started again
    loading: Loading | None = None  # what its engine told last of its start
    traffic: Traffic | None = None  # what its engine did lately

    @property
    def creating(self) -> bool:
        """On a node, but the container has not started and the pod itself says no reason."""
        return self.node is not None and not (
            self.running or self.deleting or self.failed or self.succeeded or self.trouble
        )

    @property
    def holds(self) -> tuple[str, int] | None:
        """A node, and how many of its cards that nobody else can have; None for none."""
        return (self.node, self.gpus) if self.node is not None and self.gpus and not self.failed else None

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Pod:
        """Read a whole pod."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        containers: list[dict[str, Any]] = status.get("containerStatuses") or []
        container = next((one for one in containers if one.get("name") == ENGINE), {})
        role = (metadata.get("labels") or {}).get(ROLE_LABEL, "")
        spec = obj.get("spec") or {}
        scheduled = having(status.get("conditions"), "PodScheduled", "True")
        ready = having(status.get("conditions"), "Ready", "True")
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=int(metadata["resourceVersion"]),
            model=_model(metadata),
            revision=(metadata.get("annotations") or {}).get(REVISION_ANNOTATION),
            node=spec.get("nodeName"),
            since=next((one.get("lastTransitionTime") or "" for one in scheduled), ""),
            ready=bool(container.get("ready")),
            running="running" in (container.get("state") or {}),
            deleting="deletionTimestamp" in metadata,
            failed=status.get("phase") == "Failed",
            trouble=_with_place(_trouble(status, container, finishes=bool(role)), spec),
            role=role,
            meant_for=(metadata.get("annotations") or {}).get(NODE_ANNOTATION, ""),
            succeeded=status.get("phase") == "Succeeded",
            gpus=gpus_of(spec),
            ends_by=metadata.get("deletionTimestamp", ""),
            address=status.get("podIP") or "",
            created=metadata.get("creationTimestamp") or "",
            ready_since=next((one.get("lastTransitionTime") or "" for one in ready), ""),
            restarted=bool(container.get("restartCount")),
        )


def _model(metadata: Mapping[str, Any]) -> str:
    """Anybody may write a label: the owner has to be a ReplicaSet as our Deployment makes them, or a Job as we do.

    Both bear the children's name and a hash. That they exist the garbage collector sees to: by the uid.
    """
    labels = metadata.get("labels") or {}
    model = labels.get(MODEL_LABEL, "")
    owners: list[dict[str, Any]] = metadata.get("ownerReferences") or []
    owner = next((ref for ref in owners if ref.get("controller")), {})
    if ROLE_LABEL in labels:
        made, suffix = ("batch/v1", "Job"), "[0-9a-f]{8}"
    else:
        made, suffix = ("apps/v1", "ReplicaSet"), re.escape(labels.get("pod-template-hash") or "-")
    is_ours = (owner.get("apiVersion"), owner.get("kind")) == made
    return model if is_ours and re.fullmatch(f"{re.escape(model)}-{suffix}", owner.get("name") or "") else ""


def gpus_of(spec: Mapping[str, Any]) -> int:
    """Cards that a pod of that spec holds."""
    limits = [(one.get("resources") or {}).get("limits") or {} for one in spec.get("containers") or ()]
    return sum(parse_quantity(str(one.get(GPU_RESOURCE, 0)), GPU_RESOURCE) for one in limits)


def _trouble(status: Mapping[str, Any], container: Mapping[str, Any], *, finishes: bool) -> Trouble | None:
    """The deepest reason that the pod tells, None while it is ready or goes on.

    ``finishes``: its container is to end by itself, so that its failure is the pod's.
    """
    if container.get("ready"):
        return None
    if status.get("phase") == "Succeeded":
        return None
    if finishes and "terminated" in (container.get("state") or {}):
        return _ended(container["state"]["terminated"])
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
    for condition in having(status.get("conditions"), "PodScheduled", "False"):
        if condition.get("reason") == UNSCHEDULABLE:
            return Trouble(UNSCHEDULABLE, shorten(condition.get("message") or ""))
    return None


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
    if waiting["reason"] == "CreateContainerConfigError" and detail:
        return shorten(detail)  # of what the container refers to, whatever its image
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
        STORAGE_FAILED if code == _STORAGE_EXIT_CODE else "EngineFailed",
        said or f"the engine ended with exit code {code} and left no message; see kubectl logs",
    )


def _with_place(trouble: Trouble | None, spec: Mapping[str, Any]) -> Trouble | None:
    """The engine knows its cache by the path in its container alone."""
    if trouble is None or trouble.reason != STORAGE_FAILED:
        return trouble
    paths = {one["name"]: (one.get("hostPath") or {}).get("path") for one in spec.get("volumes") or ()}
    path = paths.get(CACHE)
    place = f"The cache is {path} of node {spec.get('nodeName')}; once it" if path else "Once the cache"
    return Trouble(trouble.reason, f"{trouble.message}. {place} has room, the next try goes on by itself")


def warned(events: Iterable[Mapping[str, Any]]) -> Trouble | None:
    """What keeps a container from being created: the newest of a pod's events, if that is a warning."""

    def when(event: Mapping[str, Any]) -> str:
        return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")

    newest = max(events, key=when, default={})
    if newest.get("type") != "Warning":
        return None
    # Each pod that is refused has a name of its own; the trouble is the same.
    message = shorten(re.sub(r'(pods "[^" ]+-)[a-z0-9]{5}"', r'\1…"', newest.get("message") or ""))
    if 'volume "model"' in message and "hostPath type check failed" in message:
        return Trouble("SourceNotFound", f"the node that was chosen does not have spec.model.source: {message}")
    # Anybody may post events: the reason is somebody else's word, such as "Multi-Attach".
    return Trouble(reason(newest.get("reason") or "", otherwise="PodFailed"), message)
