"""How many of a token's missing experts are fetched: what times say, whatever they are."""

from __future__ import annotations

import pytest

from strata.experts.splits import best_split, describe, plain_split
from strata.experts.times import measure
from tests.experts.test_times import QWEN3_30B, FakeTrial, both_ways


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
    split = best_split(measure(trial, QWEN3_30B), "auto", 128)
    for missing in range(1, 9):
        least = min(trial.model(missing, fetched) for fetched in range(missing + 1))
        assert trial.model(missing, split[missing]) == least
    assert list(split[:9]) == expected
    assert split[16] == 2 * split[8]
    assert len(split) == 129


def test_hybrid_uses_both_even_where_one_alone_is_faster() -> None:
    for trial in (both_ways(10, 1000), both_ways(1000, 10)):
        split = best_split(measure(trial, QWEN3_30B), "hybrid", 128)
        assert all(0 < split[missing] < missing for missing in range(2, 129))


@pytest.mark.parametrize(
    ("placement", "expected"), [("fetch", (0, 1, 2, 3)), ("cpu", (0, 0, 0, 0)), ("auto", (0, 0, 1, 2))]
)
def test_without_a_trial(placement: str, expected: tuple[int, ...]) -> None:
    assert plain_split(placement, 3) == expected


def test_the_log_says_what_was_measured() -> None:
    times = {1: {0: 20e-6, 1: 30e-6}, 2: {0: 50e-6, 1: 30e-6, 2: 60e-6}}
    times[4] = {1: 90e-6}
    text = describe(times, best_split(times, "auto", 4), top_k=2)
    assert "0 of 1, 1 of 2, 1 of 4, the CPU" in text
    assert "2 take 0: 50, 1: 30, 2: 60 us" in text
