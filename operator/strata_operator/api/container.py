"""What a user adds to the pods beside what follows from the model: environment, secrets, a pod template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields

# Set by the operator: what they say must be so for the pod to be what the spec says.
RESERVED_ENV = (
    "STRATA_CACHE_DIR",
    "STRATA_CACHE_KEEP_DAYS",
    "STRATA_TERMINATION_LOG",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
)
OWN_PREFIX = "strata.ai/"  # of labels and annotations that the operator finds its objects by


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One entry of a Secret in the model's namespace. The kubelet reads it; the operator never does."""

    name: str
    key: str

    @classmethod
    def parse(cls, fields: Fields | None, *, key: str) -> SecretKey | None:
        """``key``: where the reference names none. None for no reference."""
        if fields is None:
            return None
        return cls(fields.need("name", str), fields.get("key", str) or key)


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Merged over the pods that the operator renders, as ``kubectl patch --type=strategic`` does."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]

    @classmethod
    def parse(cls, fields: Fields) -> PodTemplate:
        """Raises InvalidSpecError for a label or annotation that is the operator's own."""
        metadata = fields.table("metadata")
        labels, annotations = metadata.texts_by_name("labels"), metadata.texts_by_name("annotations")
        for name in sorted({**labels, **annotations}):
            if name.startswith((OWN_PREFIX, "app.kubernetes.io/")):
                raise InvalidSpecError(
                    f"spec.podTemplate.metadata holds {name!r}; names that begin with {OWN_PREFIX} or "
                    "app.kubernetes.io/ are the operator's own, by which pods are found"
                )
        return cls(labels, annotations, dict(fields.get("spec", dict) or {}))


def environment(fields: tuple[Fields, ...]) -> tuple[Mapping[str, Any], ...]:
    """``spec.env``: variables as containers have them. Raises InvalidSpecError for one that the operator sets, one that
    is given twice, and one with no value or two."""
    made: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    for one in fields:
        name, value, source = one.need("name", str), one.get("value", str), one.table("valueFrom")
        if name in RESERVED_ENV:
            raise InvalidSpecError(f"spec.env holds {name}, which the operator sets; remove it")
        if name in seen:
            raise InvalidSpecError(f"spec.env holds {name} twice; remove one")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            words = "a name is letters, digits, '_', '-' and '.', and begins with a letter or '_'"
            raise InvalidSpecError(f"spec.env holds {name!r}; {words}")
        seen.add(name)
        references = {kind: ref for kind in ("secretKeyRef", "configMapKeyRef") if (ref := _reference(source, kind))}
        if len(references) + (value is not None) != 1:
            raise InvalidSpecError(
                f"spec.env: {name} needs one of value, valueFrom.secretKeyRef and valueFrom.configMapKeyRef"
            )
        made.append({"name": name, "value": value} if not references else {"name": name, "valueFrom": references})
    return tuple(made)


def _reference(fields: Fields, kind: str) -> Mapping[str, Any] | None:
    found = fields.table_or_none(kind)
    if found is None:
        return None
    optional = found.flag("optional")
    return {
        "name": found.need("name", str),
        "key": found.need("key", str),
        **({"optional": optional} if optional is not None else {}),
    }
