"""What there is to choose where not all experts are in VRAM: how missing ones are shared, who guesses them, and where a
token's are chosen."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from strata.experts.tier import Tier

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """plan: one of ``Tier.plans``, None where there are none. predictor: one of ``Tier.predictors``, or "off". router:
    one of ``Tier.routers``."""

    plan: Sequence[int] | None
    predictor: str
    router: str = "gpu"

    def begin(self, tier: Tier) -> None:
        """Go this way, with VRAM as if no step had been."""
        tier.prefetch(self.predictor)
        tier.route_on(self.router)
        if self.plan is not None:
            tier.share_out(self.plan)

    def graph(self, tier: Tier) -> Hashable:
        """Alike for ways that one captured step serves."""
        return self.predictor, self.router, self.router == "cpu" and tier.computes_all(self.plan)


def all_ways(tier: Tier, prefetch: str, routing: str) -> dict[str, Way]:
    """By their names; at least one, the one that needs no comparison first. ``prefetch``: who guesses, "auto": whoever
    makes it faster, if anybody does. ``routing``: where experts are chosen, "auto": on the CPU as well where it
    computes all that are missing; elsewhere that adds a wait, and takes none away.
    """
    predictors: tuple[str, ...] = ("off", *tier.predictors)
    if prefetch in predictors:
        predictors = (prefetch,)
    elif prefetch != "auto":
        logger.info("--prefetch %s does nothing here: no experts are fetched while tokens are decoded", prefetch)
        predictors = ("off",)
    plans: Mapping[str, Sequence[int] | None] = tier.plans() or {"as asked": None}
    if routing == "cpu" and "cpu" not in tier.routers:
        logger.info("--routing-device cpu does nothing here: the CPU computes no experts")
    ways = [
        (name, Way(plan, predictor, router))
        for name, plan in plans.items()
        for predictor in predictors
        for router in tier.routers
        if router == _router(tier, routing) or (routing == "auto" and predictor == "off" and tier.computes_all(plan))
    ]
    return {_named(name, way): way for name, way in ways}


def _router(tier: Tier, routing: str) -> str:
    """Where experts are chosen without a comparison."""
    return routing if routing in tier.routers else "gpu"


def _named(plan: str, way: Way) -> str:
    guesses = "" if way.predictor == "off" else f", prefetch {way.predictor}"
    return f"{plan}{guesses}" + (", routed on the CPU" if way.router == "cpu" else "")
