"""Which way with experts that VRAM has not is kept: the one whose decode steps are fastest.

What a trial of some layers finds (``experts.calibration``) is one candidate. The others fetch all, or leave all to the
CPU; and each may have experts fetched ahead, as somebody guesses. A step also has to do with which experts come back,
and with who guesses right, and that the trial does not know.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

MAX_STEPS = 24  # of a way, in each round
_SECONDS = 0.25  # that they take, about; a large model on a slow machine decodes fewer
_MIN_STEPS = 6
_ROUNDS = 2  # of all ways in turn; the better one counts, since what else runs only ever costs time


def keep_fastest(
    ways: Mapping[str, Callable[[], None]],
    decode: Callable[[int], None],
    max_steps: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Go the way whose steps are fastest; the seconds of a step by way, none where there is nothing to choose.

    ``ways``: each by what begins it, with VRAM as if no step had been. ``decode``: runs step 0, 1 ... of a text and
    waits for it, at most ``max_steps`` of them."""
    if len(ways) < 2 or max_steps < 1:
        return {}
    first = next(iter(ways))

    def run(name: str, steps: int) -> float:
        """The median: slots fill with what the text needs meanwhile."""
        ways[name]()
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
        for name in ways:
            took = run(name, steps)
            seconds[name] = min(took, seconds.get(name, took))
    best = min(seconds, key=lambda name: seconds[name])
    ways[best]()
    figures = ", ".join(f"{name} {1 / took:.1f} tok/s" for name, took in seconds.items())
    logger.info(
        "decoding a token with the ways to missing experts: %s; kept: %s",
        figures,
        best,
    )
    return seconds
