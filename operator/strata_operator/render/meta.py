"""What all children share: names, labels, owner references and the hash of what is applied."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from strata_operator.api.model import API_VERSION, KIND, StrataModel
from strata_operator.api.names import HASH_ANNOTATION, MODEL_LABEL, child_name

_encode = json.JSONEncoder(sort_keys=True).encode


def selector(model: StrataModel) -> dict[str, str]:
    """The labels that find a model's pods."""
    return {MODEL_LABEL: child_name(model.name)}


def labels(model: StrataModel) -> dict[str, str]:
    """Labels of every child and pod. None of the model's own: tools that track it by label would claim the children."""
    return {
        **selector(model),
        "app.kubernetes.io/name": "strata-engine",
        "app.kubernetes.io/instance": child_name(model.name),
        "app.kubernetes.io/managed-by": "strata-operator",
    }


def digest(value: Mapping[str, Any]) -> str:
    """A short hash that does not depend on the order of keys."""
    return hashlib.sha256(_encode(value).encode()).hexdigest()[:16]


def endpoints(model: StrataModel) -> dict[str, str]:
    """The labels that find those of a model's pods that serve or are to."""
    return {**selector(model), "app.kubernetes.io/name": "strata-engine"}


def manifest(
    model: StrataModel,
    api_version: str,
    kind: str,
    *,
    suffix: str = "",
    further_labels: Mapping[str, str] = MappingProxyType({}),
    further_annotations: Mapping[str, str] = MappingProxyType({}),
    **body: Any,
) -> dict[str, Any]:
    """A child with metadata, owned by the model, bearing the hash of all of it. ``suffix``: of its name.
    ``further_labels`` and ``further_annotations``: beside its own, which they cannot change."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": model.name,
        "uid": model.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata: dict[str, Any] = {
        "name": "-".join(filter(None, (child_name(model.name), suffix))),
        "namespace": model.namespace,
        "labels": {**further_labels, **labels(model)},
        "ownerReferences": [owner],
    }
    if further_annotations:
        metadata["annotations"] = dict(further_annotations)
    made = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    metadata["annotations"] = {**further_annotations, HASH_ANNOTATION: digest(made)}
    return made
