"""``spec.scheduling``: what a user adds to the placement that follows from the hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_operator.api.fields import Fields


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod toleration, as Kubernetes has it."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Toleration:
        return cls(
            key=fields.get("key", str),
            operator=fields.get("operator", str),
            value=fields.get("value", str),
            effect=fields.get("effect", str),
            toleration_seconds=fields.get("tolerationSeconds", int),
        )


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Labels that a node must bear, taints that are tolerated, and the pods' priority."""

    node_selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...] = ()
    priority_class_name: str | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Scheduling:
        return cls(
            node_selector=fields.texts_by_name("nodeSelector"),
            tolerations=tuple(Toleration.parse(one) for one in fields.tables("tolerations")),
            priority_class_name=fields.get("priorityClassName", str),
        )
