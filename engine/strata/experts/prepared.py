"""Routed experts as matrices in an order that the device's kernels want."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strata.experts.tier import Tier, TierStep, step_of
from strata.kernels.layer import Expert, Kernels, Router
from strata.kernels.matrix import Activation


class Prepared(Tier):
    """``experts``: those of a layer, by its number; asked for once, taken one after another."""

    max_captured = 0  # the host runs those that were chosen

    def __init__(self, kernels: Kernels, experts: Callable[[int], Iterable[Expert]]) -> None:
        self._kernels = kernels
        self._experts = experts

    def layer(self, layer: int, activation: Activation, router: Router) -> TierStep:
        """As ``Tier.layer``."""
        return step_of(router, self._kernels.experts(self._experts(layer), activation))
