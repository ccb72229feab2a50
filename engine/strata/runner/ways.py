"""What there is to choose where not all experts are in VRAM: how missing ones are shared, and who guesses them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata.experts.tier import Tier

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """plan: one of ``Tier.plans``, None where there are none. predictor: one of ``Tier.predictors``, or "off"."""

    plan: Sequence[int] | None
    predictor: str

    def begin(self, tier: Tier) -> None:
        """Go this way, with VRAM as if no step had been."""
        tier.prefetch(self.predictor)
        if self.plan is not None:
            tier.share_out(self.plan)


def all_ways(tier: Tier, prefetch: str) -> dict[str, Way]:
    """By their names; at least one, the one that needs no comparison first. ``prefetch``: who guesses, "auto": whoever
    makes it faster, if anybody does."""
    predictors: tuple[str, ...] = ("off", *tier.predictors)
    if prefetch in predictors:
        predictors = (prefetch,)
    elif prefetch != "auto":
        logger.info("--prefetch %s does nothing here: no experts are fetched while tokens are decoded", prefetch)
        predictors = ("off",)
    plans: Mapping[str, Sequence[int] | None] = tier.plans() or {"as asked": None}
    return {
        name if predictor == "off" else f"{name}, prefetch {predictor}": Way(plan, predictor)
        for name, plan in plans.items()
        for predictor in predictors
    }
