"""What a tier is that asks nobody else while a step runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from strata.experts.counts import ExpertStats
from strata.experts.saved import SavedTimes
from strata.kernels.layer import ExpertsFn, Router


class SelfContained:
    """The card alone computes the experts, and finds all of them at addresses that it can read."""

    can_capture = True
    max_captured: int | None = None
    predictors: tuple[str, ...] = ()
    routers: tuple[str, ...] = ("gpu",)

    def calibrate(self, saved: SavedTimes, *, anew: bool = False) -> None:
        """As ``Tier.calibrate``."""

    def plans(self) -> Mapping[str, Sequence[int]]:
        """As ``Tier.plans``."""
        return {}

    def share_out(self, plan: Sequence[int]) -> None:
        """As ``Tier.share_out``: there is no plan to share by."""

    def prefetch(self, predictor: str) -> None:
        """As ``Tier.prefetch``: nothing is fetched."""

    def computes_all(self, plan: Sequence[int] | None) -> bool:
        """As ``Tier.computes_all``: the CPU computes none."""
        return False

    def route_on(self, where: str) -> None:
        """As ``Tier.route_on``: the device always does."""

    def announce_replay(self) -> None:
        """As ``Tier.announce_replay``."""

    def check(self) -> None:
        """As ``Tier.check``."""

    def start_counting(self) -> None:
        """As ``Tier.start_counting``."""

    def stats(self, *, wait: bool = False) -> ExpertStats | None:
        """As ``Tier.stats``: nothing is brought, nothing missed."""
        return None

    def close(self) -> None:
        """As ``Tier.close``."""


def step_of(router: Router, experts: ExpertsFn) -> Callable[[Tensor], Tensor]:
    """x -> x + the experts that the device chooses for it."""
    return lambda x: experts(router(x), x)
