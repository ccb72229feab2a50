"""What a model was measured to do, for its status; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_operator.api import wire
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.figures import Buckets, Traffic, total

# A figure is written anew once it differs by more than this share: load varies, and a status is no graph.
CHANGE = 0.1
_MOST = 1e9  # no engine's figure, and no integer of every client


@dataclass(frozen=True, slots=True)
class Measured:
    """``revision``: of the pods that were measured. None: nothing has told yet."""

    revision: str
    tokens_per_second: int | None = None  # that a replica generates while its engine works
    ttft_p50_milliseconds: int | None = None
    ttft_p95_milliseconds: int | None = None
    expert_hit_percent: int | None = None  # of the experts that steps needed, found in VRAM

    @classmethod
    def of(cls, status: Mapping[str, Any], revision: str) -> Measured:
        """What the status has of that revision. What cannot be read, edited by hand perhaps, counts as absent."""
        try:
            held = wire.load(cls, status.get("measured") or {}, "status.measured", closed=False)
        except InvalidSpecError:
            return cls(revision)
        return held if held.revision == revision else cls(revision)

    def after(self, traffic: Sequence[Traffic]) -> Measured:
        """With what engines of the revision have done since; the same where that is much as before."""
        found = total(traffic)
        speed = found.tokens / found.step_seconds if found.step_seconds and found.tokens else None
        p50, p95 = (quantile(found.ttft, share) for share in (0.5, 0.95))
        return Measured(
            self.revision,
            _newer(self.tokens_per_second, speed),
            _newer(self.ttft_p50_milliseconds, None if p50 is None else 1000 * p50),
            _newer(self.ttft_p95_milliseconds, None if p95 is None else 1000 * p95),
            _newer(self.expert_hit_percent, 100 * found.hits / found.experts if found.experts else None),
        )

    def dump(self) -> dict[str, Any]:
        """For the status; empty where nothing was measured."""
        return {} if self == Measured(self.revision) else dict(wire.dump(self))


def _newer(held: int | None, found: float | None) -> int | None:
    """``found`` to two digits, unless it is much like what is held."""
    if found is None or found > _MOST or (held is not None and abs(found - held) <= CHANGE * held):
        return held
    return max(1, round(float(f"{found:.2g}")))


def quantile(buckets: Buckets, share: float) -> float | None:
    """As PromQL's histogram_quantile: linear in its bucket, at most the last finite bound. None: nothing is counted."""
    count = buckets[-1][1] if buckets else 0
    if not count:
        return None
    lower, below = 0.0, 0.0
    for bound, upto in buckets:
        if upto >= share * count:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (share * count - below) / (upto - below)
        lower, below = bound, upto
    return lower
