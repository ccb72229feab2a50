"""Which way with experts that VRAM has not is kept: the one whose decode steps are fastest.

What a trial of some layers finds (``experts.calibration``) is one candidate. The others fetch all, or leave all to the
CPU; a step also has to do with which experts come back, and that the trial does not know.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

MAX_STEPS = 24  # of a plan, in each round
_SECONDS = 0.4  # that they take, about; a large model on a slow machine decodes fewer
_MIN_STEPS = 6
_ROUNDS = 2  # of all plans in turn; the better one counts, since what else runs only ever costs time


class Shared(Protocol):
    """A tier whose experts beyond VRAM can be had in more than one way."""

    def plans(self) -> Mapping[str, Sequence[int]]:
        """As ``Tier.plans``."""

    def share_out(self, plan: Sequence[int]) -> None:
        """As ``Tier.share_out``."""


def keep_fastest(
    tier: Shared, decode: Callable[[int], None], max_steps: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Leave ``tier`` with the plan whose steps are fastest; the seconds of a step by plan, none where there is nothing
    to choose. ``decode``: runs step 0, 1 ... of a text and waits for it, at most ``max_steps`` of them."""
    plans = tier.plans()
    if len(plans) < 2 or max_steps < 1:
        return {}
    first = next(iter(plans))

    def run(name: str, steps: int) -> float:
        """The median: slots fill with what the text needs meanwhile."""
        tier.share_out(plans[name])
        took = []
        for step in range(steps):
            began = clock()
            decode(step)
            took.append(clock() - began)
        return statistics.median(took)

    once = run(first, min(_MIN_STEPS, max_steps))  # not counted: it wakes the card up
    steps = min(max(_MIN_STEPS, int(_SECONDS / max(once, 1e-6))), MAX_STEPS, max_steps)
    seconds: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for name in plans:
            took = run(name, steps)
            seconds[name] = min(took, seconds.get(name, took))
    best = min(seconds, key=lambda name: seconds[name])
    tier.share_out(plans[best])
    figures = ", ".join(f"{name} {1 / took:.1f} tok/s" for name, took in seconds.items())
    logger.info(
        "decoding a token with the ways to missing experts: %s; kept: %s%s",
        figures,
        best,
        "" if best == first else f", though the trial of single layers chose {first}",
    )
    return seconds
