"""Which way to missing experts is kept (``experts.ways``): the one whose decode steps are fastest.

What a trial of some layers finds (``experts.calibration``) is one candidate. A step also has to do with which experts
come back, and with who guesses right, and that the trial does not know.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

logger = logging.getLogger(__name__)

Way = TypeVar("Way", bound=Hashable)  # whose text is its name

MAX_STEPS = 24  # of a way, in each round
_SECONDS = 0.25  # that they take, about; a large model on a slow machine decodes fewer
_MIN_STEPS = 6
_ROUNDS = 2  # of all ways in turn; the better one counts, since what else runs only ever costs time


def keep_fastest(
    ways: Sequence[Way],
    begin: Callable[[Way], None],
    decode: Callable[[int], None],
    max_steps: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Way, dict[Way, float]]:
    """Begin the way whose steps are fastest: that one, and the seconds of a step by way, none where there is nothing to
    choose.

    ``begin``: goes a way, with VRAM as if no step had been. ``decode``: runs step 0, 1 ... of a text and waits for it,
    at most ``max_steps`` of them."""
    first = ways[0]
    if len(ways) < 2 or max_steps < 1:
        begin(first)
        return first, {}

    def run(way: Way, steps: int) -> float:
        """The median: slots fill with what the text needs meanwhile."""
        begin(way)
        took = []
        for step in range(steps):
            began = clock()
            decode(step)
            took.append(clock() - began)
        return statistics.median(took)

    once = run(first, min(_MIN_STEPS, max_steps))  # not counted: it wakes the card up
    steps = min(max(_MIN_STEPS, int(_SECONDS / max(once, 1e-6))), MAX_STEPS, max_steps)
    seconds: dict[Way, float] = {}
    for _ in range(_ROUNDS):
        for way in ways:
            took = run(way, steps)
            seconds[way] = min(took, seconds.get(way, took))
    best = min(seconds, key=lambda way: seconds[way])
    begin(best)
    figures = ", ".join(f"{way} {1 / took:.1f} tok/s" for way, took in seconds.items())
    logger.info("decoding a token with the ways to missing experts: %s; kept: %s", figures, best)
    return best, seconds
