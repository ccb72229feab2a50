"""What is tried of a layer's missing experts, and when it is tried again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata.experts.splits import best_split
from strata.experts.times import Bounds, measure, measure_many, still_holds

QWEN3_30B = Bounds(top_k=8, num_slots=64, num_experts=128)


class FakeTrial:
    """Layers that take as long as they are told to; every seventh run something else gets in the way."""

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        self.model = seconds
        self.asked: list[tuple[int, int]] = []

    def seconds(self, missing: int, fetched: int) -> float:
        self.asked.append((missing, fetched))
        return self.model(missing, fetched) * (3 if len(self.asked) % 7 == 0 else 1)


def both_ways(each_fetched: float, each_computed: float, start: float = 10) -> FakeTrial:
    """Both at once: the slower one is waited for."""
    return FakeTrial(
        lambda missing, fetched: max(
            each_fetched * fetched, start * (fetched < missing) + each_computed * (missing - fetched)
        )
    )


def test_few_slots_bound_what_is_missing_and_what_is_fetched() -> None:
    """Of 8 experts 4 are missing at least, and what the other 4 need is not given away."""
    trial = both_ways(10, 1000)
    bounds = Bounds(top_k=8, num_slots=4, num_experts=128)
    times = measure(trial, bounds)
    assert sorted(times) == [4, 5, 6, 7, 8]
    assert all(fetched <= missing - 4 for missing, fetched in trial.asked)
    assert best_split(times, "auto", 128)[4:9] == (0, 1, 2, 3, 4)


def test_few_experts_outside_vram_bound_what_is_missing() -> None:
    assert list(Bounds(top_k=8, num_slots=126, num_experts=128).missing) == [1, 2]


def test_a_trial_asks_little() -> None:
    """A large model's layers take a millisecond, and an engine that starts shall not wait for long."""
    trial = both_ways(50, 50)
    measure(trial, QWEN3_30B)
    assert len(trial.asked) < 200


def test_what_is_known_is_not_tried_again() -> None:
    times = measure(both_ways(50, 25), QWEN3_30B)
    again = both_ways(1, 1)
    assert measure(again, QWEN3_30B, times) == times
    assert not again.asked


def test_what_fewer_slots_ask_is_tried_beside_what_is_known() -> None:
    """With many slots one of two missing experts was fetched, with few none can be."""
    few = Bounds(top_k=4, num_slots=2, num_experts=128)
    known = {**measure(both_ways(50, 25), Bounds(4, 64, 128)), 2: {1: 50.0, 2: 100.0}}
    trial = both_ways(50, 25)
    times = measure(trial, few, known)
    assert times[2] == {0: trial.model(2, 0)}
    assert set(times) == {2, 3, 4}
    assert all(fetched <= missing - 2 for missing, found in times.items() for fetched in found)


@pytest.mark.parametrize(
    ("trial", "holds"),
    [
        pytest.param(both_ways(50, 25), True, id="as it was"),
        pytest.param(both_ways(55, 24), True, id="about as it was"),
        pytest.param(both_ways(100, 25), False, id="the card in a slower slot"),
        pytest.param(both_ways(50, 12), False, id="faster memory"),
        pytest.param(both_ways(20, 10, 0), False, id="a machine that was busy at the time"),
    ],
)
def test_known_times_that_do_not_hold_any_more(trial: FakeTrial, holds: bool) -> None:
    known = measure(both_ways(50, 25), QWEN3_30B)
    assert still_holds(trial, QWEN3_30B, known) == holds
    assert len(trial.asked) < 30


def test_known_times_of_other_numbers_do_not_hold() -> None:
    assert not still_holds(both_ways(50, 25), QWEN3_30B, {2: {0: 50.0}})


def test_what_many_tokens_miss() -> None:
    """Of 128 experts 16 tokens take 82 if they draw evenly; half are in VRAM, and no slot of theirs is free."""
    bounds = Bounds(top_k=8, num_slots=64, num_experts=128)
    assert (bounds.missing_of(16), bounds.resident(41)) == (41, 41)
    assert bounds.fetched(41) == range(24)
    assert bounds.missing_of(1) == 4
    few = Bounds(top_k=8, num_slots=4, num_experts=128)
    assert (few.missing_of(16), few.resident(80), few.fetched(80)) == (80, 3, range(2))


def test_many_missing_experts_are_tried_around_the_best_split_of_one_token() -> None:
    """Several tokens to an expert cost the CPU more, and PCIe nothing."""
    bounds = Bounds(top_k=8, num_slots=192, num_experts=256)
    trial = FakeTrial(lambda missing, fetched: max(50 * fetched, (25 if missing <= 8 else 75) * (missing - fetched)))
    times = measure(trial, bounds)
    asked = len(trial.asked)
    many = measure_many(trial, bounds, 30, times)
    assert min(many, key=lambda fetched: many[fetched]) == 17  # tried in steps of 3; 18 is best
    assert len(trial.asked) - asked < 60
    split = best_split({**times, 30: many}, "auto", 256)
    assert split[8] == 2
    assert split[19] == 10  # half way
    assert split[60] == 34
    assert list(split) == sorted(split)
