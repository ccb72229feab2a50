"""The rules of status conditions: what moves ``lastTransitionTime``, and what may be read from an older status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

ACCEPTED = "Accepted"
PROGRESSING = "Progressing"
READY = "Ready"
DEGRADED = "Degraded"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition before it is written. ``reason`` is CamelCase; ``message`` holds nothing that ticks."""

    type: str
    status: bool
    reason: str
    message: str


def timestamp(now: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge(
    conditions: Iterable[Condition], previous: Iterable[Mapping[str, Any]], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The list to write, sorted by type. ``lastTransitionTime`` moves only where the status flips."""
    old = {condition.get("type"): condition for condition in previous}
    merged = []
    for condition in sorted(conditions, key=lambda one: one.type):
        status = "True" if condition.status else "False"
        before = old.get(condition.type, {})
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        merged.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": since or timestamp(now),
            }
        )
    return merged


def find(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type in a status, empty where there is none."""
    return next((c for c in status.get("conditions") or [] if c.get("type") == kind), {})
