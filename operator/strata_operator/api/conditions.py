"""The rules of conditions: what moves ``lastTransitionTime``, which words the CRD allows, how an older one is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

ACCEPTED = "Accepted"
CACHED = "Cached"
FITS = "Fits"
NODE_TUNED = "NodeTuned"
PROGRESSING = "Progressing"
READY = "Ready"
ROUTED = "Routed"
DEGRADED = "Degraded"

# Reasons of a new spec that waits for its preflight, and of one whose preflight has trouble.
PREFLIGHT = "Preflight"
PREFLIGHT_FAILED = "PreflightFailed"
# Of a pod for which the scheduler finds no node.
UNSCHEDULABLE = "Unschedulable"
# Of what the API server refuses: a child, or what is wanted of nodes.
APPLY_REFUSED = "ApplyRefused"
# Of a pod whose engine ended because a disk cannot be written or has no room; the node's cache, mostly.
STORAGE_FAILED = "StorageFailed"

_STATUS = {True: "True", False: "False", None: "Unknown"}
_REASON_LIMIT = 128  # characters; the CRD allows more, an event does not
_MESSAGE_LIMIT = 1000  # characters of an engine's, the kubelet's or the API server's words that a condition quotes


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition before it is written. ``reason`` is CamelCase; ``message`` holds nothing that ticks."""

    type: str
    status: bool | None  # None: not known
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something does not go on: a CamelCase reason and words for people."""

    reason: str
    message: str


def timestamp(now: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(since: str, now: datetime) -> float:
    """Seconds since a time that Kubernetes wrote; 0 for what is no time."""
    try:
        return (now - datetime.fromisoformat(since)).total_seconds()
    except ValueError:
        return 0.0


def merge(
    conditions: Iterable[Condition], previous: Iterable[Mapping[str, Any]], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The list to write, sorted by type. ``lastTransitionTime`` moves only where the status flips."""
    old = {condition.get("type"): condition for condition in previous}
    merged = []
    for condition in sorted(conditions, key=lambda one: one.type):
        status = _STATUS[condition.status]
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


def having(conditions: Iterable[Mapping[str, Any]] | None, kind: str, status: str) -> list[Mapping[str, Any]]:
    """Those of that type and status; works for pods and Deployments as well."""
    return [one for one in conditions or () if (one.get("type"), one.get("status")) == (kind, status)]


def reason(text: str, *, otherwise: str) -> str:
    """Somebody else's word as a CamelCase reason; ``otherwise`` where nothing is left of it.

    The API server refuses a whole status for one reason that its schema does not allow.
    """
    parts = re.findall(r"[A-Za-z0-9]+", text)
    made = "".join(part[0].upper() + part[1:] for part in parts).lstrip("0123456789")
    return made[:_REASON_LIMIT] or otherwise


def shorten(text: str) -> str:
    """The end of the text where it is long: the last lines of a log say why."""
    return text if len(text) <= _MESSAGE_LIMIT else "…" + text[1 - _MESSAGE_LIMIT :]
