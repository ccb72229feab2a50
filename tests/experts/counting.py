"""What a tier has counted, for tests."""

from __future__ import annotations

from strata.experts.counts import ExpertCounts
from strata.experts.hybrid import Hybrid


def counts_of(tier: Hybrid) -> ExpertCounts:
    """Of all layers, once the device has done what it was given."""
    stats = tier.stats(wait=True)
    assert stats is not None
    return stats.total
