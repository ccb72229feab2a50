"""How to share missing experts between the two ways to them: by trial, while both are busy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias

logger = logging.getLogger(__name__)

_TRIALS = 5  # of each number; the best counts, since what else runs only ever costs time

TOLERANCE = 1.3  # between two starts; more, and another card, other memory or another load is behind it

# By how many of a token's experts are missing, and how many of these are fetched: seconds a layer.
Times: TypeAlias = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Choices:
    """What a layer can meet in a step of one token."""

    top_k: int
    num_slots: int  # of a layer
    num_experts: int

    @property
    def missing(self) -> range:
        """How many of a token's experts may be missing."""
        return range(max(1, self.top_k - self.num_slots), min(self.top_k, self.num_experts - self.num_slots) + 1)

    def fetched(self, missing: int) -> range:
        """How many of so many missing ones may be fetched: slots whose experts the token needs are not free."""
        return range(min(missing, self.num_slots - (self.top_k - missing)) + 1)


class Timed(Protocol):
    """Layers that can be tried."""

    def seconds(self, missing: int, fetched: int) -> float:
        """Of a layer, when so many of a token's experts are missing, of which so many are fetched."""


def measure(trial: Timed, choices: Choices, known: Times = MappingProxyType({})) -> dict[int, dict[int, float]]:
    """Each number of missing experts with a few numbers of fetched ones: from the best one for one less, downhill.
    What is ``known`` already is not tried again."""
    times: dict[int, dict[int, float]] = {}
    best, last = 0, choices.missing[-1]
    warm = False
    for missing in choices.missing:
        allowed = choices.fetched(missing)
        found = times[missing] = {k: took for k, took in known.get(missing, {}).items() if k in allowed}
        best = _fastest(found) if found else best
        wanted = {best - 1, best, best + 1} | ({0, allowed[-1]} if missing == last else set())
        while wanted := wanted.intersection(allowed) - found.keys():
            if not warm:
                wake_up(trial, choices)
                warm = True
            for _ in range(_TRIALS):
                for fetched in sorted(wanted):
                    took = trial.seconds(missing, fetched)
                    found[fetched] = min(took, found.get(fetched, took))
            best = _fastest(found)
            wanted = {best - 1, best + 1}
    return times


def wake_up(trial: Timed, choices: Choices) -> None:
    """Runs that are not counted: the card is clocked down, and threads sleep."""
    last = choices.missing[-1]
    for fetched in choices.fetched(last):
        trial.seconds(last, fetched)


def still_holds(trial: Timed, choices: Choices, known: Times) -> bool:
    """Whether a few of the ``known`` times are what is measured now: the best for as many missing experts as there may
    be, and as few and as many fetched as are known."""
    last = choices.missing[-1]
    found = {fetched: took for fetched, took in known.get(last, {}).items() if fetched in choices.fetched(last)}
    if not found:
        return False
    wake_up(trial, choices)
    for fetched in {min(found), _fastest(found), max(found)}:
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


def plain_fetches(way: str, num_experts: int) -> tuple[int, ...]:
    """How many of 0, 1 ... ``num_experts`` missing experts are fetched: all, or none, or, before a trial, half."""
    share = {"fetch": 1.0, "cpu": 0.0}.get(way, 0.5)
    return tuple(round(share * missing) for missing in range(num_experts + 1))


def best_fetches(times: Times, way: str, num_experts: int) -> tuple[int, ...]:
    """As ``plain_fetches``, by what is fastest. ``way``: "hybrid" takes both ways wherever there are two to share, any
    other also one alone. More than a token takes are shared like all of a token's."""
    best = {}
    for missing, found in times.items():
        both = {fetched: took for fetched, took in found.items() if 0 < fetched < missing}
        best[missing] = _fastest(both if way == "hybrid" and both else found)
    share = best[max(best)] / max(best)
    return tuple(best.get(missing, round(share * missing)) for missing in range(num_experts + 1))


def all_plans(fetches: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """What a trial found, first, and the ways that need none; by their names in ``expert_placement``."""
    plain = {way: plain_fetches(way, len(fetches) - 1) for way in ("fetch", "cpu")}
    found = next((way for way, plan in plain.items() if plan == fetches), "hybrid")
    return {found: fetches, **plain}


def describe(times: Times, fetches: tuple[int, ...]) -> str:
    """For people: what was chosen, and what a layer takes that way and otherwise."""
    last = max(times)
    chosen = ", ".join(f"{fetches[missing]} of {missing}" for missing in times)
    found = ", ".join(f"{fetched}: {1e6 * took:.0f}" for fetched, took in sorted(times[last].items()))
    return (
        f"of a layer's missing experts the card fetches {chosen}, the CPU computes the others; {last} take {found} us "
        "a layer when so many are fetched"
    )


def _fastest(found: Mapping[int, float]) -> int:
    return min(found, key=lambda fetched: found[fetched])
