"""What the operator keeps of a model's children, slim and frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.conditions import having, shorten
from strata_operator.api.names import ENGINE, FIELD_MANAGER, HASH_ANNOTATION, REVISION_ANNOTATION
from strata_operator.api.reach import ROUTE_KINDS, Reach


@dataclass(frozen=True, slots=True)
class Rollout:
    """A Deployment's status: how far the pods are."""

    generation: int
    observed_generation: int
    replicas: int  # pods of all revisions
    updated: int  # pods of the newest revision
    ready: int  # ready pods of all revisions
    failure: str | None  # why the API server refused to create pods
    revision: str | None = None  # of the pod template
    surge: bool = False  # a new pod is started before an old one is stopped
    paused: bool = False  # by somebody: pods of a new template are not started
    wanted: int = 0  # pods that it is told to have
    preferred: tuple[str, ...] = ()  # nodes, by their names
    image: str = ""  # of the engine


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
    deleting: bool
    is_created: bool = False  # and never applied since: that entry says Update
    rollout: Rollout | None = None
    reach: Reach | None = None  # of what leads to the model from outside

    @classmethod
    def of(cls, kind: str, obj: Mapping[str, Any]) -> Child:
        """Read a whole object or its PartialObjectMetadata."""
        metadata = obj["metadata"]
        owner = next((ref for ref in metadata.get("ownerReferences") or [] if ref.get("controller")), None)
        entries = metadata.get("managedFields") or []
        applied = next((entry for entry in entries if _is_ours(entry, "Apply")), None)
        created = next((entry for entry in entries if is_created_by_us(entry)), None)
        ours = (applied or created or {}).get("fieldsV1") or {}
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
            deleting="deletionTimestamp" in metadata,
            is_created=applied is None and created is not None,
            rollout=_rollout(obj) if kind == "Deployment" else None,
            reach=Reach.of(kind, obj) if kind in ROUTE_KINDS else None,
        )


def is_created_by_us(entry: Mapping[str, Any]) -> bool:
    """Whether that managedFields entry has what we set when we created the object."""
    return _is_ours(entry, "Update")


def _is_ours(entry: Mapping[str, Any], operation: str) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource")) == (FIELD_MANAGER, operation, None)


def _rollout(obj: Mapping[str, Any]) -> Rollout:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    failures = [one.get("message", "") for one in having(status.get("conditions"), "ReplicaFailure", "True")]
    return Rollout(
        generation=obj["metadata"].get("generation", 0),
        observed_generation=status.get("observedGeneration", 0),
        replicas=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        failure=shorten(failures[0]) if failures else None,
        revision=(((spec.get("template") or {}).get("metadata") or {}).get("annotations") or {}).get(
            REVISION_ANNOTATION
        ),
        surge=bool(((spec.get("strategy") or {}).get("rollingUpdate") or {}).get("maxSurge")),
        paused=bool(spec.get("paused")),
        wanted=spec.get("replicas", 1),
        preferred=_preferred(pod),
        image=engine_image(pod),
    )


def engine_image(pod: Mapping[str, Any]) -> str:
    """Of a pod's spec; "" where it has no such container."""
    images = (one.get("image") for one in pod.get("containers") or () if one.get("name") == ENGINE)
    return next(images, None) or ""


def _preferred(pod: Mapping[str, Any]) -> tuple[str, ...]:
    terms = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    )
    fields = [field for term in terms or () for field in (term.get("preference") or {}).get("matchFields") or ()]
    return tuple(name for field in fields for name in field.get("values") or ())
