"""How many of a token's missing experts are fetched: what times say, whatever they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from strata.experts.calibration import (
    Choices,
    all_plans,
    best_fetches,
    describe,
    measure,
    measure_many,
    plain_fetches,
    still_holds,
)
from strata.experts.trial import Trial

QWEN3_30B = Choices(top_k=8, num_slots=64, num_experts=128)


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


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        pytest.param(both_ways(50, 50, 0), [0, 0, 1, 1, 2, 2, 3, 3, 4], id="both as fast"),
        pytest.param(both_ways(50, 25), [0, 0, 1, 1, 1, 2, 2, 2, 3], id="the CPU twice as fast"),
        pytest.param(both_ways(10, 1000), list(range(9)), id="hardly any CPU"),
        pytest.param(both_ways(1000, 10), [0] * 9, id="hardly any PCIe"),
    ],
)
def test_the_choice_follows_the_times(trial: FakeTrial, expected: list[int]) -> None:
    fetches = best_fetches(measure(trial, QWEN3_30B), "auto", 128)
    for missing in range(1, 9):
        least = min(trial.model(missing, fetched) for fetched in range(missing + 1))
        assert trial.model(missing, fetches[missing]) == least
    assert list(fetches[:9]) == expected
    assert fetches[16] == 2 * fetches[8]
    assert len(fetches) == 129


def test_hybrid_uses_both_even_where_one_alone_is_faster() -> None:
    for trial in (both_ways(10, 1000), both_ways(1000, 10)):
        fetches = best_fetches(measure(trial, QWEN3_30B), "hybrid", 128)
        assert all(0 < fetches[missing] < missing for missing in range(2, 129))


def test_few_slots_bound_what_is_missing_and_what_is_fetched() -> None:
    """Of 8 experts 4 are missing at least, and what the other 4 need is not given away."""
    trial = both_ways(10, 1000)
    choices = Choices(top_k=8, num_slots=4, num_experts=128)
    times = measure(trial, choices)
    assert sorted(times) == [4, 5, 6, 7, 8]
    assert all(fetched <= missing - 4 for missing, fetched in trial.asked)
    assert best_fetches(times, "auto", 128)[4:9] == (0, 1, 2, 3, 4)


def test_few_experts_outside_vram_bound_what_is_missing() -> None:
    assert list(Choices(top_k=8, num_slots=126, num_experts=128).missing) == [1, 2]


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
    few = Choices(top_k=4, num_slots=2, num_experts=128)
    known = {**measure(both_ways(50, 25), Choices(4, 64, 128)), 2: {1: 50.0, 2: 100.0}}
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


@pytest.mark.parametrize(("way", "expected"), [("fetch", (0, 1, 2, 3)), ("cpu", (0, 0, 0, 0)), ("auto", (0, 0, 1, 2))])
def test_without_a_trial(way: str, expected: tuple[int, ...]) -> None:
    assert plain_fetches(way, 3) == expected


def test_the_log_says_what_was_measured() -> None:
    times = {1: {0: 20e-6, 1: 30e-6}, 2: {0: 50e-6, 1: 30e-6, 2: 60e-6}}
    times[4] = {1: 90e-6}
    text = describe(times, best_fetches(times, "auto", 4), top_k=2)
    assert "0 of 1, 1 of 2, 1 of 4, the CPU" in text
    assert "2 take 0: 50, 1: 30, 2: 60 us" in text


def test_what_many_tokens_miss() -> None:
    """Of 128 experts 16 tokens take 82 if they draw evenly; half are in VRAM, and no slot of theirs is free."""
    choices = Choices(top_k=8, num_slots=64, num_experts=128)
    assert (choices.missing_of(16), choices.resident(41)) == (41, 41)
    assert choices.fetched(41) == range(24)
    assert choices.missing_of(1) == 4
    few = Choices(top_k=8, num_slots=4, num_experts=128)
    assert (few.missing_of(16), few.resident(80), few.fetched(80)) == (80, 3, range(2))


def test_many_missing_experts_are_tried_around_the_best_share_of_one_token() -> None:
    """Several tokens to an expert cost the CPU more, and PCIe nothing."""
    choices = Choices(top_k=8, num_slots=192, num_experts=256)
    trial = FakeTrial(lambda missing, fetched: max(50 * fetched, (25 if missing <= 8 else 75) * (missing - fetched)))
    times = measure(trial, choices)
    asked = len(trial.asked)
    many = measure_many(trial, choices, 30, times)
    assert min(many, key=lambda fetched: many[fetched]) == 17  # tried in steps of 3; 18 is best
    assert len(trial.asked) - asked < 60
    fetches = best_fetches({**times, 30: many}, "auto", 256)
    assert fetches[8] == 2
    assert fetches[19] == 10  # half way
    assert fetches[60] == 34
    assert list(fetches) == sorted(fetches)


def test_many_tokens_take_what_was_drawn_in_turn() -> None:
    addresses = torch.zeros(1, 12, dtype=torch.int64)
    addresses[:, :4] = 4096
    choices, seen = Choices(top_k=3, num_slots=4, num_experts=12), []
    ids = torch.zeros(1, 5, 3, dtype=torch.int32)
    trial = Trial(lambda: seen.append(ids.clone()), choices, ids, addresses, torch.zeros(13, dtype=torch.int32))
    trial.seconds(6, 1)
    (taken,) = seen
    assert all(len(set(row)) == 3 for row in taken[0].tolist())
    drawn = set(taken.flatten().tolist())
    assert (len(drawn - {0, 1, 2, 3}), len(drawn & {0, 1, 2, 3})) == (6, 3)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_as_many_are_missing_as_was_asked_for(missing: int) -> None:
    """Others each time, and also after the layers have changed what is there."""
    addresses = torch.zeros(2, 8, dtype=torch.int64)
    addresses[:, :3] = 4096
    ids, fetches = torch.zeros(2, 1, 3, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    seen = []

    def run() -> None:
        taken = ids.squeeze(1).long()
        assert all(len(set(row)) == 3 for row in taken.tolist())
        assert (addresses.gather(1, taken) == 0).sum(-1).tolist() == [missing, missing]
        assert int(fetches[missing]) == 1
        seen.append(taken.tolist())
        addresses.copy_(addresses.roll(1, dims=1))

    trial = Trial(run, Choices(top_k=3, num_slots=3, num_experts=8), ids, addresses, fetches)
    assert all(trial.seconds(missing, 1) >= 0 for _ in range(8))
    assert len({str(each) for each in seen}) > 1


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ((0, 0, 1), ["hybrid", "fetch", "cpu"]),
        ((0, 1, 2), ["fetch", "cpu"]),
        ((0, 0, 0), ["cpu", "fetch"]),
    ],
)
def test_plans_to_compare(found: tuple[int, ...], names: list[str]) -> None:
    plans = all_plans(found)
    assert list(plans) == names
    assert plans[names[0]] == found
    assert plans["fetch"] == (0, 1, 2)
    assert plans["cpu"] == (0, 0, 0)
