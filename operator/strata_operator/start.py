"""How long a model's last start took, for its status; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from strata_operator.api import wire
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.pod import Pod


@dataclass(frozen=True, slots=True)
class Start:
    """Of the youngest pod of a revision that got ready. None: none has yet.

    A pod's own time of creation tells it apart, so that one that was unready for a while is not taken for a new start.
    """

    revision: str
    pod_created: str | None = None  # RFC 3339
    seconds: int | None = None  # from there until it was ready

    @classmethod
    def of(cls, status: Mapping[str, Any], revision: str) -> Start:
        """What the status has of that revision. What cannot be read, edited by hand perhaps, counts as absent."""
        try:
            held = wire.load(cls, status.get("lastStart") or {}, "status.lastStart", closed=False)
        except InvalidSpecError:
            return cls(revision)
        return held if held.revision == revision else cls(revision)

    def after(self, pods: Iterable[Pod]) -> Start:
        """With the ready ones of those pods, which are of the revision; one whose container was started again tells of
        that start, too, and is left out."""
        ready = [pod for pod in pods if pod.ready and pod.ready_since and not pod.restarted]
        youngest = max(ready, key=lambda pod: pod.created, default=None)
        if youngest is None or youngest.created <= (self.pod_created or ""):
            return self
        seconds = _seconds(youngest.created, youngest.ready_since)
        return self if seconds is None else Start(self.revision, youngest.created, seconds)

    def dump(self) -> dict[str, Any]:
        """For the status; empty where nothing has started."""
        return {} if self.seconds is None else dict(wire.dump(self))

    def words(self, nodes: Iterable[str]) -> str:
        """What the next start costs, as far as that is known; ``nodes`` are those that keep the converted weights."""
        kept = ", ".join(nodes)
        weights = f"the converted weights are on {kept}" if kept else "the weights have to be fetched and converted"
        if self.seconds is None:
            return f"how long a start takes was not measured yet; {weights}"
        return f"the last start took {self.seconds} s from the pod's creation until it was ready; {weights}"


def _seconds(created: str, ready: str) -> int | None:
    """None for what are no times, or in no order."""
    try:
        seconds = (datetime.fromisoformat(ready) - datetime.fromisoformat(created)).total_seconds()
    except (ValueError, TypeError):
        return None
    return round(seconds) if seconds >= 0 else None
