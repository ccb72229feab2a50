"""How a start learns to share missing experts: from the times of an earlier one, or by trial."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from strata.experts.calibration import Choices, Timed, Times, measure, measure_many, still_holds
from strata.experts.saved import Facts, SavedTimes

# Enough layers to say what one takes; all of a large model's would make the trial a long one.
LAYERS = 16
LAYERS_OF_MANY = 4  # where as many tokens as there may be run together

# Of so many tokens, through so many layers at most.
OpenTrial: TypeAlias = Callable[[int, int], AbstractContextManager[Timed]]


def find_times(
    choices: Choices, max_tokens: int, open_trial: OpenTrial, saved: SavedTimes, facts: Facts, *, anew: bool = False
) -> tuple[Times, bool]:
    """Of one token's missing experts and of ``max_tokens`` tokens', and whether an earlier start had found all of it.
    ``anew``: whatever one has found. What is new is ``saved``."""
    known = {} if anew else saved.read(facts)
    many = choices.missing_of(max_tokens)
    with open_trial(1, LAYERS) as trial:
        if known and not still_holds(trial, choices, known):
            known = {}
        times = measure(trial, choices, known)
    if many in known:
        times[many] = dict(known[many])
    elif many > choices.top_k:
        with open_trial(max_tokens, LAYERS_OF_MANY) as trial:
            times[many] = measure_many(trial, choices, many, times)
    merged = {missing: {**known.get(missing, {}), **times.get(missing, {})} for missing in {*known, *times}}
    if merged == known:
        return times, True
    saved.write(facts, merged)
    return times, False
