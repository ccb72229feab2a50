"""The governor on simulated coolers: it holds the limit, and comes to rest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_operator.agent.fake import SimulatedCard, h200, rtx3090
from strata_operator.agent.governor import CALM_SECONDS, HYSTERESIS_C, STEP_SECONDS, Governor, degrees_too_hot

LIMIT, LEAST = 350_000, 100_000


def step(governor: Governor, now: float, too_hot: int | None, power: int = LIMIT) -> Governor:
    return governor.step(now, too_hot=too_hot, power=power, limit=LIMIT, least=LEAST)


@pytest.mark.parametrize(
    ("governor", "now", "too_hot", "cap"),
    [
        pytest.param(Governor(), 0, None, None, id="no wish"),
        pytest.param(Governor(300_000), 0, None, None, id="the wish has gone"),
        pytest.param(Governor(), 0, 0, None, id="at the limit"),
        pytest.param(Governor(), 0, 2, 340_000, id="two degrees"),
        pytest.param(Governor(), 0, 30, 330_000, id="one step never answers more than four"),
        pytest.param(Governor(300_000, 0), STEP_SECONDS - 1, 2, 300_000, id="the cooler has had no time to answer"),
        pytest.param(Governor(300_000, 0), STEP_SECONDS, 2, 290_000, id="still too hot"),
        pytest.param(Governor(101_000, 0), STEP_SECONDS, 2, LEAST, id="never below what the card takes"),
        pytest.param(Governor(300_000, 0), 1000, 1 - HYSTERESIS_C, 300_000, id="within the band it rests"),
        pytest.param(Governor(300_000, 0, 0), CALM_SECONDS - 1, -9, 300_000, id="cool, but not for long"),
        pytest.param(Governor(300_000, 0, 0), CALM_SECONDS, -9, 305_000, id="cool for long enough"),
        pytest.param(Governor(300_000, 0), 1000, -9, 300_000, id="cool only now"),
        pytest.param(Governor(346_000, 0, 0), 1000, -9, None, id="back to where it was"),
        pytest.param(Governor(360_000, 0), 1000, -1, None, id="a limit that was lowered makes the cap needless"),
    ],
)
def test_step(governor: Governor, now: float, too_hot: int | None, cap: int | None) -> None:
    assert step(governor, now, too_hot).cap == cap


def test_a_card_that_draws_less_than_its_limit_is_lowered_from_there() -> None:
    assert step(Governor(), 0, 1, power=200_000).cap == 195_000


def test_the_hotter_of_core_and_memory_counts() -> None:
    assert degrees_too_hot(80, 99, most_core=83, most_memory=95) == 4
    assert degrees_too_hot(80, None, most_core=83, most_memory=95) == -3  # a 30-series card
    assert degrees_too_hot(None, None, most_core=83, most_memory=95) is None
    assert degrees_too_hot(80, 99, most_core=None, most_memory=None) is None


def run(card: SimulatedCard, most: int, *, minutes: int, turn: float = 5.0) -> list[tuple[float, int | None]]:
    """Temperature and cap after each turn of the agent, with the card under its own limit otherwise."""
    limit = card.default_power_limit or 0
    least, _ = card.power_limit_range or (0, 0)
    governor, seen, now = Governor(), [], 0.0
    while now < 60 * minutes:
        now += turn
        card.advance(turn)
        hot = degrees_too_hot(card.temperature, None, most_core=most, most_memory=None)
        governor = governor.step(now, too_hot=hot, power=card.power, limit=limit, least=least)
        card.power_limit = limit if governor.cap is None else governor.cap
        seen.append((card.heat, governor.cap))
    return seen


def changes(seen: list[tuple[float, int | None]]) -> int:
    return sum(before[1] != after[1] for before, after in pairwise(seen))


def test_a_hot_case_holds_the_limit_and_comes_to_rest() -> None:
    seen = run(rtx3090(load=1.0, ambient=45.0), 83, minutes=60)
    last = seen[len(seen) // 2 :]
    assert max(heat for heat, _ in last) <= 83.5
    assert changes(last) == 0
    cap = last[-1][1]
    assert cap is not None
    assert 220_000 < cap < 255_000  # 253 W is what this cooler takes away at 83 degrees


def test_a_cool_card_is_left_alone() -> None:
    assert {cap for _, cap in run(rtx3090(load=1.0, ambient=20.0), 83, minutes=20)} == {None}


def test_the_limit_comes_back_when_the_case_cools() -> None:
    card = rtx3090(load=1.0, ambient=45.0)
    assert run(card, 83, minutes=20)[-1][1] is not None
    card.ambient = 20.0
    governor = Governor(card.power_limit, 0.0)
    for second in range(0, 3600, 5):
        card.advance(5)
        hot = degrees_too_hot(card.temperature, None, most_core=83, most_memory=None)
        governor = governor.step(float(second), too_hot=hot, power=card.power, limit=350_000, least=100_000)
        card.power_limit = governor.cap or 350_000
    assert governor.cap is None


@settings(max_examples=60, deadline=None)
@given(
    ambient=st.floats(15, 50),
    degrees_per_watt=st.floats(0.08, 0.2),
    seconds=st.floats(8, 60),
    most=st.integers(65, 90),
    load=st.floats(0.3, 1.0),
    turn=st.sampled_from([2.0, 5.0, 10.0]),
    kind=st.sampled_from([rtx3090, h200]),
)
def test_no_cooler_makes_it_oscillate(
    ambient: float, degrees_per_watt: float, seconds: float, most: int, load: float, turn: float, kind: Any
) -> None:
    """Two and a half hours of steady load: the last third sees no change, and a card that can be held is held."""
    card = kind(load=load, ambient=ambient, degrees_per_watt=degrees_per_watt, seconds=seconds)
    seen = run(card, most, minutes=150, turn=turn)
    last = seen[2 * len(seen) // 3 :]
    assert changes(last) == 0
    least, _ = card.power_limit_range or (0, 0)
    if ambient + degrees_per_watt * least / 1000 < most - 1:
        assert max(heat for heat, _ in last) <= most + 0.6
