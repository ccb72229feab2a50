from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_operator.agent.fake import FakeDriver, SimulatedCard, gpus_of, rtx3090, rtx4090
from strata_operator.agent.hardware import Card
from strata_operator.agent.wishes import Limit, resolve
from strata_operator.api.node import NodeSpec, Tuning, Wish

A, B = rtx3090(1), rtx3090(2)
LIMITS = {A.uuid: 350_000, B.uuid: 350_000}


def cards(*simulated: SimulatedCard) -> tuple[Card, ...]:
    return gpus_of(FakeDriver(simulated or (A, B))).find().cards


def spec(*wishes: Wish, **fields: Any) -> NodeSpec:
    return NodeSpec(Tuning(wishes), **fields)


def test_the_lowest_of_each_limit_wins_and_is_named() -> None:
    wishes = spec(
        Wish("ns/a", power_limit_watts=300, sm_clock_max_mhz=1500, max_core_temperature_c=80),
        Wish("ns/b", power_limit_watts=280, sm_clock_max_mhz=1800, max_memory_temperature_c=95),
    )
    made, troubles = resolve(wishes, cards(), LIMITS)
    assert troubles == ()
    assert made[A.uuid] == made[B.uuid]
    assert made[A.uuid].power_watts == Limit(280, "ns/b")
    assert made[A.uuid].power_milliwatts == 280_000
    assert made[A.uuid].sm_clock_mhz == Limit(1500, "ns/a")
    assert made[A.uuid].core_temperature_c == Limit(80, "ns/a")
    assert made[A.uuid].memory_temperature_c == Limit(95, "ns/b")
    assert made[A.uuid].memory_clock_mhz is None


def test_a_wish_may_name_its_cards() -> None:
    made, troubles = resolve(spec(Wish("ns/a", gpus=(B.uuid, "GPU-x"), power_limit_watts=200)), cards(), LIMITS)
    assert made[A.uuid].power_milliwatts is None
    assert made[B.uuid].power_milliwatts == 200_000
    assert [one.message for one in troubles] == ["ns/a names card GPU-x, which this node does not have"]


@pytest.mark.parametrize("watts", [99, 401], ids=["below", "above"])
def test_outside_of_what_the_card_allows_is_refused_and_never_clamped(watts: int) -> None:
    made, (trouble, _) = resolve(spec(Wish("ns/a", power_limit_watts=watts, sm_clock_max_mhz=900)), cards(), LIMITS)
    assert made[A.uuid].power_watts is None
    assert made[A.uuid].sm_clock_mhz == Limit(900, "ns/a")  # its other wishes count
    assert trouble.reason == "Refused"
    assert f"ns/a wants {watts} W of card {A.uuid}" in trouble.message
    assert "allowed are 100 to 400 W" in trouble.message


@pytest.mark.parametrize("watts", [100, 400], ids=["least", "most"])
def test_the_ends_of_the_range_are_allowed(watts: int) -> None:
    made, troubles = resolve(spec(Wish("ns/a", power_limit_watts=watts)), cards(), LIMITS)
    assert (made[A.uuid].power_milliwatts, troubles) == (1000 * watts, ())


def test_a_refused_wish_leaves_the_others() -> None:
    """The lowest wins among those that are allowed: on another card 90 W may be right."""
    made, troubles = resolve(
        spec(Wish("ns/a", power_limit_watts=90), Wish("ns/b", power_limit_watts=250)), cards(A), LIMITS
    )
    assert made[A.uuid].power_watts == Limit(250, "ns/b")
    assert len(troubles) == 1


def test_a_card_without_limits_refuses() -> None:
    bare = rtx3090(3, power_limit=None, power_limit_range=None)
    _, (trouble,) = resolve(spec(Wish("ns/a", power_limit_watts=200)), cards(bare), {})
    assert "which takes no limit" in trouble.message


def test_suspended_nothing_is_wanted() -> None:
    wishes = spec(Wish("ns/a", power_limit_watts=200), suspend=True, power_budget_watts=300)
    assert resolve(wishes, cards(), LIMITS) == ({}, ())


def test_a_budget_takes_the_same_share_of_each_card_s_room() -> None:
    small, large = rtx3090(1), rtx4090(1)
    limits = {small.uuid: 350_000, large.uuid: 450_000}
    made, _ = resolve(
        spec(Wish("ns/a", gpus=(small.uuid,), power_limit_watts=300), power_budget_watts=500),
        cards(small, large),
        limits,
    )
    # 100 to 300 and 150 to 450 W: half of what lies between is given up.
    assert (made[small.uuid].power_milliwatts, made[large.uuid].power_milliwatts) == (200_000, 300_000)
    assert made[small.uuid].power_watts == Limit(300, "ns/a")
    assert made[large.uuid].power_watts == Limit(450, None)


def test_a_budget_that_is_kept_anyway_changes_nothing() -> None:
    made, _ = resolve(spec(power_budget_watts=700), cards(), LIMITS)
    assert {wish.power_milliwatts for wish in made.values()} == {None}


def test_a_budget_below_what_the_cards_need_is_refused() -> None:
    made, (trouble,) = resolve(spec(power_budget_watts=199), cards(), LIMITS)
    assert trouble.message == "powerBudgetWatts is 199; 2 cards need at least 200 W"
    assert {wish.power_milliwatts for wish in made.values()} == {None}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(100, 400), st.booleans()), min_size=1, max_size=8),
    st.integers(50, 3500),
)
def test_the_sum_stays_within_the_budget(limits: list[tuple[int, bool]], budget: int) -> None:
    simulated = [rtx3090(number) for number in range(len(limits))]
    wishes = [
        Wish(f"ns/m{number}", gpus=(simulated[number].uuid,), power_limit_watts=watts)
        for number, (watts, is_wish) in enumerate(limits)
        if is_wish
    ]
    own = {card.uuid: 1000 * watts for card, (watts, _) in zip(simulated, limits, strict=True)}
    made, troubles = resolve(spec(*wishes, power_budget_watts=budget), cards(*simulated), own)
    enforced = [made[uuid].power_milliwatts or own[uuid] for uuid in own]
    assert all(100_000 <= one <= own[uuid] for uuid, one in zip(own, enforced, strict=True))
    assert bool(troubles) == (budget < 100 * len(limits))
    if not troubles:
        assert sum(enforced) <= 1000 * budget
