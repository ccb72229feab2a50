"""What all models together want of each card: refusals, then the lowest of each limit, then the power budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strata_operator.agent.hardware import Card
from strata_operator.api.conditions import Trouble
from strata_operator.api.node import NodeSpec, Wish

POWER = "powerLimitWatts"
SM_CLOCK = "smClockMaxMHz"
MEMORY_CLOCK = "memoryClockMaxMHz"


@dataclass(frozen=True, slots=True)
class Limit:
    """The lowest of a limit's wishes, and whose it is; None: the power budget's."""

    value: int
    model: str | None


@dataclass(frozen=True, slots=True)
class CardWish:
    """What is wanted of one card. None: nobody wants anything of that."""

    power_watts: Limit | None = None
    sm_clock_mhz: Limit | None = None
    memory_clock_mhz: Limit | None = None
    core_temperature_c: Limit | None = None
    memory_temperature_c: Limit | None = None
    power_milliwatts: int | None = None  # what power_watts comes to within the node's budget


def resolve(
    spec: NodeSpec, cards: Sequence[Card], limits: Mapping[str, int]
) -> tuple[dict[str, CardWish], tuple[Trouble, ...]]:
    """By UUID, and what is refused. ``limits`` are the cards' power limits without us, in milliwatts, by UUID.

    A wish outside of what its card allows is refused as a whole limit, never changed to fit; others still count.
    """
    if spec.suspend:
        return {}, ()
    troubles: list[Trouble] = []
    made = {}
    for card in cards:
        meant = [wish for wish in spec.tuning.models if not wish.gpus or card.uuid in wish.gpus]
        refusals = [_refusal(wish, card) for wish in meant]
        troubles += filter(None, refusals)
        allowed = [wish for wish, refusal in zip(meant, refusals, strict=True) if refusal is None]
        made[card.uuid] = CardWish(
            power_watts=_lowest([(w.power_limit_watts, w) for w in allowed]),
            sm_clock_mhz=_lowest([(w.sm_clock_max_mhz, w) for w in meant]),
            memory_clock_mhz=_lowest([(w.memory_clock_max_mhz, w) for w in meant]),
            core_temperature_c=_lowest([(w.max_core_temperature_c, w) for w in meant]),
            memory_temperature_c=_lowest([(w.max_memory_temperature_c, w) for w in meant]),
        )
    known = {card.uuid for card in cards}
    troubles += (
        Trouble("NoSuchGpu", f"{wish.model} names card {uuid}, which this node does not have")
        for wish in spec.tuning.models
        for uuid in wish.gpus
        if uuid not in known
    )
    return _within_budget(made, cards, limits, spec.power_budget_watts, troubles), tuple(troubles)


def _lowest(wishes: Sequence[tuple[int | None, Wish]]) -> Limit | None:
    given = [Limit(value, wish.model) for value, wish in wishes if value is not None]
    return min(given, key=lambda limit: (limit.value, limit.model or ""), default=None)


def _refusal(wish: Wish, card: Card) -> Trouble | None:
    """Why the card cannot have the power limit that is wished for; None where it can, or none is."""
    watts = wish.power_limit_watts
    if watts is None:
        return None
    wanted = f"{wish.model} wants {watts} W of card {card.uuid} ({card.product})"
    if card.power_limit_range is None:
        return Trouble("Refused", f"{wanted}, which takes no limit")
    low, high = card.power_limit_range
    if low <= 1000 * watts <= high:
        return None
    return Trouble("Refused", f"{wanted}; allowed are {low / 1000:g} to {high / 1000:g} W")


def _within_budget(
    wishes: dict[str, CardWish],
    cards: Sequence[Card],
    limits: Mapping[str, int],
    budget_watts: int | None,
    troubles: list[Trouble],
) -> dict[str, CardWish]:
    """Every card gives up the same share of what lies between its least and its wish."""
    made = {
        uuid: replace(wish, power_milliwatts=1000 * wish.power_watts.value) if wish.power_watts else wish
        for uuid, wish in wishes.items()
    }
    if budget_watts is None:
        return made
    # A card without a range draws what it draws: it counts, and cannot be lowered.
    asked = {card.uuid: made[card.uuid].power_milliwatts or limits.get(card.uuid, 0) for card in cards}
    least = {
        card.uuid: min(card.power_limit_range[0], asked[card.uuid]) if card.power_limit_range else asked[card.uuid]
        for card in cards
    }
    budget = 1000 * budget_watts
    if sum(asked.values()) <= budget:
        return made
    room, span = budget - sum(least.values()), sum(asked.values()) - sum(least.values())
    if room < 0:
        needed = sum(least.values()) / 1000
        troubles.append(
            Trouble("Refused", f"powerBudgetWatts is {budget_watts}; {len(cards)} cards need at least {needed:g} W")
        )
        return made
    for card in cards:
        if card.power_limit_range is not None:
            share = (asked[card.uuid] - least[card.uuid]) * room // span
            lowered = (least[card.uuid] + share) // 1000 * 1000
            lowered = max(lowered, least[card.uuid])
            wish = made[card.uuid]
            limit = wish.power_watts or Limit(asked[card.uuid] // 1000, None)
            made[card.uuid] = replace(wish, power_watts=limit, power_milliwatts=lowered)
    return made
