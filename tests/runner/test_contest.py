"""Ways to missing experts, by what their decode steps take: the slowest is never kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from strata.runner.contest import MAX_STEPS, keep_fastest

WAYS = ("hybrid", "fetch", "cpu")


class FakeTier:
    """Steps take what ``seconds`` says of the way in use; now and then something else gets in the way."""

    def __init__(self, seconds: Mapping[str, float], ways: Sequence[str] = WAYS) -> None:
        self.ways = {way: partial(self.begin, way) for way in ways}
        self._seconds = seconds
        self.now = 0.0
        self.used: list[str] = []
        self.steps: list[int] = []

    def begin(self, way: str) -> None:
        self.used.append(way)

    def decode(self, step: int) -> None:
        self.steps.append(step)
        self.now += self._seconds[self.used[-1]] * (20 if len(self.steps) % 9 == 0 else 1)

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        pytest.param({"hybrid": 0.010, "fetch": 0.012, "cpu": 0.011}, "hybrid", id="what the trial chose"),
        pytest.param({"hybrid": 0.010, "fetch": 0.009, "cpu": 0.011}, "fetch", id="all fetched"),
        pytest.param({"hybrid": 0.010, "fetch": 0.012, "cpu": 0.0099}, "cpu", id="all on the CPU"),
        pytest.param({"hybrid": 0.010, "fetch": 0.010, "cpu": 0.010}, "hybrid", id="all alike"),
    ],
)
def test_the_fastest_is_kept(seconds: dict[str, float], kept: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tier = FakeTier(seconds)
    found = keep_fastest(tier.ways, tier.decode, 100, tier.clock)
    assert found == pytest.approx(seconds)
    assert tier.used[-1] == kept
    assert f"kept: {kept}" in caplog.text
    assert f"cpu {1 / seconds['cpu']:.1f} tok/s" in caplog.text


def test_every_way_starts_the_same_text_anew() -> None:
    tier = FakeTier({"hybrid": 0.01, "fetch": 0.01, "cpu": 0.01})
    keep_fastest(tier.ways, tier.decode, 100, tier.clock)
    assert tier.steps[-3 * MAX_STEPS :] == 3 * list(range(MAX_STEPS))
    assert tier.used == ["hybrid", *WAYS, *WAYS, "hybrid"]


def test_slow_steps_are_few() -> None:
    tier = FakeTier({"hybrid": 0.5, "fetch": 2.0, "cpu": 1.0})
    keep_fastest(tier.ways, tier.decode, 100, tier.clock)
    assert len(tier.steps) < 50
    assert tier.used[-1] == "hybrid"


@pytest.mark.parametrize(
    ("ways", "max_steps"),
    [
        pytest.param(["cpu"], 100, id="one way: all experts are in VRAM, or it was asked for"),
        pytest.param(WAYS, 0, id="no room for a token"),
    ],
)
def test_where_there_is_nothing_to_choose(ways: Sequence[str], max_steps: int) -> None:
    tier = FakeTier({}, ways)
    assert keep_fastest(tier.ways, tier.decode, max_steps, tier.clock) == {}
    assert not tier.steps
    assert not tier.used
