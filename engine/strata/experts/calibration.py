"""How a start learns to split missing experts: from the times of an earlier one, or by trial."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from strata.experts.saved import Facts, SavedTimes
from strata.experts.times import Bounds, Timed, Times, measure, measure_many, still_holds
from strata.experts.ways import Split

# Enough layers to say what one takes; all of a large model's would make the trial a long one.
LAYERS = 16
LAYERS_OF_MANY = 4  # where as many tokens as there may be run together

# Of so many tokens, through so many layers at most.
OpenTrial: TypeAlias = Callable[[int, int], AbstractContextManager[Timed]]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a start has learned. ``facts``: of the machine and the experts, on which ``times`` depend. ``split``: the
    best one by these."""

    facts: Facts
    times: Times
    split: Split
    fetch_seconds: Callable[[], float]  # measures one expert over PCIe, while nothing else goes on


def find_times(
    bounds: Bounds, max_tokens: int, open_trial: OpenTrial, saved: SavedTimes, facts: Facts, *, anew: bool = False
) -> tuple[Times, bool]:
    """Of one token's missing experts and of ``max_tokens`` tokens', and whether an earlier start had found all of it.
    ``anew``: whatever one has found. What is new is ``saved``."""
    known = {} if anew else saved.read(facts)
    many = bounds.missing_of(max_tokens)
    with open_trial(1, LAYERS) as trial:
        if known and not still_holds(trial, bounds, known):
            known = {}
        times = measure(trial, bounds, known)
    if many in known:
        times[many] = dict(known[many])
    elif many > bounds.top_k:
        with open_trial(max_tokens, LAYERS_OF_MANY) as trial:
            times[many] = measure_many(trial, bounds, many, times)
    merged = {missing: {**known.get(missing, {}), **times.get(missing, {})} for missing in {*known, *times}}
    if merged == known:
        return times, True
    saved.write(facts, merged)
    return times, False
