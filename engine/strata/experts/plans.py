"""How many of a layer's missing experts are fetched, for each number of them: a plan, tried or not.

A plan has a place for each of 0, 1 ... all experts of a layer, which may be missing; the CPU computes what is not
fetched.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata.experts.calibration import Times, fastest


def plain_fetches(way: str, num_experts: int) -> tuple[int, ...]:
    """How many of 0, 1 ... ``num_experts`` missing experts are fetched: all, or none, or, before a trial, half."""
    share = {"fetch": 1.0, "cpu": 0.0}.get(way, 0.5)
    return tuple(round(share * missing) for missing in range(num_experts + 1))


def best_fetches(times: Times, way: str, num_experts: int) -> tuple[int, ...]:
    """As ``plain_fetches``, by what is fastest; what was not tried is shared as what lies next to it. ``way``: "hybrid"
    takes both ways wherever there are two to share, any other also one alone."""
    best = {0: 0}
    for missing, found in sorted(times.items()):
        both = {fetched: took for fetched, took in found.items() if 0 < fetched < missing}
        best[missing] = fastest(both if way == "hybrid" and both else found)
    last = max(best)
    best[num_experts] = best.get(num_experts, round(num_experts * best[last] / last))
    return tuple(_between(best, missing) for missing in range(num_experts + 1))


def _between(best: Mapping[int, int], missing: int) -> int:
    """On the line from the tried number below to the one above."""
    low = max(each for each in best if each <= missing)
    high = min(each for each in best if each >= missing)
    if low == high:
        return best[low]
    return round(best[low] + (best[high] - best[low]) * (missing - low) / (high - low))


def all_plans(fetches: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """What a trial found, first, and the ways that need none; by their names in ``expert_placement``."""
    plain = {way: plain_fetches(way, len(fetches) - 1) for way in ("fetch", "cpu")}
    found = next((way for way, plan in plain.items() if plan == fetches), "hybrid")
    return {found: fetches, **plain}


def describe(times: Times, fetches: tuple[int, ...], top_k: int) -> str:
    """For people: what was chosen, and what a layer takes that way and otherwise."""
    last = most_of_one(times, top_k)
    chosen = ", ".join(f"{fetches[missing]} of {missing}" for missing in sorted(times))
    found = ", ".join(f"{fetched}: {1e6 * took:.0f}" for fetched, took in sorted(times[last].items()))
    return (
        f"of a layer's missing experts the card fetches {chosen}, the CPU computes the others; {last} take {found} us "
        "a layer when so many are fetched"
    )


def most_of_one(times: Times, top_k: int) -> int:
    """Missing experts of one token, as many as were tried."""
    return max(missing for missing in times if missing <= top_k)
