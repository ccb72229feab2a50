"""How missing experts are split between PCIe and the CPU, tried or not."""

from __future__ import annotations

from collections.abc import Mapping

from strata.experts.times import Times, fastest
from strata.experts.ways import Split


def plain_split(placement: str, num_experts: int) -> Split:
    """Of a layer with so many experts: all missing ones fetched ("fetch"), none ("cpu"), or, before a trial, half."""
    share = {"fetch": 1.0, "cpu": 0.0}.get(placement, 0.5)
    return tuple(round(share * missing) for missing in range(num_experts + 1))


def best_split(times: Times, placement: str, num_experts: int) -> Split:
    """By what is fastest; what was not tried is split as what lies next to it. ``placement``: "hybrid" takes both
    wherever there are two to split, any other also one alone."""
    best = {0: 0}
    for missing, found in sorted(times.items()):
        both = {fetched: took for fetched, took in found.items() if 0 < fetched < missing}
        best[missing] = fastest(both if placement == "hybrid" and both else found)
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


def describe(times: Times, split: Split, top_k: int) -> str:
    """For people: what was chosen, and what a layer takes with that split and with others."""
    last = most_of_one(times, top_k)
    chosen = ", ".join(f"{split[missing]} of {missing}" for missing in sorted(times))
    found = ", ".join(f"{fetched}: {1e6 * took:.0f}" for fetched, took in sorted(times[last].items()))
    return (
        f"of a layer's missing experts the card fetches {chosen}, the CPU computes the others; {last} take {found} us "
        "a layer when so many are fetched"
    )


def most_of_one(times: Times, top_k: int) -> int:
    """Missing experts of one token, as many as were tried."""
    return max(missing for missing in times if missing <= top_k)
