"""What it takes to fetch some of a layer's missing experts while the CPU computes the others: by trial."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias

logger = logging.getLogger(__name__)

_TRIALS = 5  # of each number; the best counts, since what else runs only ever costs time

TOLERANCE = 1.3  # between two starts; more, and another card, other memory or another load is behind it

# By how many of a step's experts are missing, and how many of these are fetched: seconds a layer.
Times: TypeAlias = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a layer can meet in a step."""

    top_k: int
    num_slots: int  # of a layer
    num_experts: int

    @property
    def missing(self) -> range:
        """How many of a token's experts may be missing."""
        return range(max(1, self.top_k - self.num_slots), min(self.top_k, self.num_experts - self.num_slots) + 1)

    def missing_of(self, tokens: int) -> int:
        """Of so many tokens' experts, on average if they draw evenly."""
        taken = 1 - (1 - self.top_k / self.num_experts) ** tokens
        return round(taken * (self.num_experts - self.num_slots))

    def resident(self, missing: int) -> int:
        """Experts in VRAM that a step needs beside so many missing ones: a token's others, or, of more tokens, as large
        a share of those in VRAM as of the others."""
        if missing <= self.top_k:
            return self.top_k - missing
        return round(missing * self.num_slots / (self.num_experts - self.num_slots))

    def fetched(self, missing: int) -> range:
        """How many of so many missing ones may be fetched: slots whose experts the step needs are not free."""
        return range(min(missing, self.num_slots - self.resident(missing)) + 1)


class Timed(Protocol):
    """Layers that can be tried."""

    def seconds(self, missing: int, fetched: int) -> float:
        """Of a layer, when so many of a step's experts are missing, of which so many are fetched."""


def measure(trial: Timed, bounds: Bounds, known: Times = MappingProxyType({})) -> dict[int, dict[int, float]]:
    """Each number of a token's missing experts with a few numbers of fetched ones: from the best one for one less,
    downhill. What is ``known`` already is not tried again."""
    times: dict[int, dict[int, float]] = {}
    best, last = 0, bounds.missing[-1]
    for missing in bounds.missing:
        allowed = bounds.fetched(missing)
        found = times[missing] = _allowed(known.get(missing, {}), allowed)
        best = fastest(found) if found else best
        ends = {0, allowed[-1]} if missing == last else set()
        best = _descend(trial, missing, allowed, found, {best - 1, best, best + 1} | ends)
    return times


def measure_many(trial: Timed, bounds: Bounds, missing: int, times: Times) -> dict[int, float]:
    """More missing experts than a token takes, from the split on that is best for one token. ``times``: of one."""
    last = max(times)
    allowed, found = bounds.fetched(missing), dict[int, float]()
    step = max(1, missing // 10)
    start = min(round(missing * fastest(times[last]) / last), allowed[-1])
    _descend(trial, missing, allowed, found, {max(0, start - step), start, min(start + step, allowed[-1])}, step)
    return found


def _descend(
    trial: Timed, missing: int, allowed: range, found: dict[int, float], wanted: set[int], step: int = 1
) -> int:
    """Try the ``wanted`` numbers of fetched experts, then what lies beside the best one, until that is the best."""
    while wanted := wanted.intersection(allowed) - found.keys():
        trial.seconds(missing, max(wanted))  # not counted: the card is clocked down, and threads sleep
        for _ in range(_TRIALS):
            for fetched in sorted(wanted):
                took = trial.seconds(missing, fetched)
                found[fetched] = min(took, found.get(fetched, took))
        best = fastest(found)
        wanted = {best - step, best + step}
    return fastest(found)


def still_holds(trial: Timed, bounds: Bounds, known: Times) -> bool:
    """Whether a few of the ``known`` times are what is measured now: the best for as many missing experts as there may
    be, and as few and as many fetched as are known."""
    last = bounds.missing[-1]
    found = _allowed(known.get(last, {}), bounds.fetched(last))
    if not found:
        return False
    for fetched in {min(found), fastest(found), max(found)}:
        trial.seconds(last, fetched)  # not counted, as always
        took = min(trial.seconds(last, fetched) for _ in range(_TRIALS))
        if not found[fetched] / TOLERANCE < took < found[fetched] * TOLERANCE:
            logger.info(
                "%d missing experts, %d of them fetched, took %.0f us a layer in an earlier trial and take %.0f now",
                last,
                fetched,
                1e6 * found[fetched],
                1e6 * took,
            )
            return False
    return True


def _allowed(found: Mapping[int, float], allowed: range) -> dict[int, float]:
    return {fetched: took for fetched, took in found.items() if fetched in allowed}


def fastest(found: Mapping[int, float]) -> int:
    """The number of fetched experts with the least time."""
    return min(found, key=lambda fetched: found[fetched])
