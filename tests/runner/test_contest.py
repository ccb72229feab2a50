"""Ways to share missing experts, by what their decode steps take: the slowest is never kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from strata.runner.contest import MAX_STEPS, keep_fastest

PLANS = {"hybrid": (0, 0, 1), "fetch": (0, 1, 2), "cpu": (0, 0, 0)}


class FakeTier:
    """Steps take what ``seconds`` says of the plan in use; now and then something else gets in the way."""

    def __init__(self, seconds: Mapping[str, float], plans: Mapping[str, Sequence[int]] = PLANS) -> None:
        self._plans, self._seconds = plans, seconds
        self.now = 0.0
        self.used: list[str] = []
        self.steps: list[int] = []

    def plans(self) -> Mapping[str, Sequence[int]]:
        return self._plans

    def share_out(self, plan: Sequence[int]) -> None:
        self.used.append(next(name for name, each in self._plans.items() if each == plan))

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
    found = keep_fastest(tier, tier.decode, 100, tier.clock)
    assert found == pytest.approx(seconds)
    assert tier.used[-1] == kept
    assert f"kept: {kept}" in caplog.text
    assert f"cpu {1 / seconds['cpu']:.1f} tok/s" in caplog.text
    assert ("though the trial" in caplog.text) == (kept != "hybrid")


def test_every_plan_starts_the_same_text_anew() -> None:
    tier = FakeTier({"hybrid": 0.01, "fetch": 0.01, "cpu": 0.01})
    keep_fastest(tier, tier.decode, 100, tier.clock)
    assert tier.steps[-3 * MAX_STEPS :] == 3 * list(range(MAX_STEPS))
    assert tier.used == ["hybrid", *PLANS, *PLANS, "hybrid"]


def test_slow_steps_are_few() -> None:
    tier = FakeTier({"hybrid": 0.5, "fetch": 2.0, "cpu": 1.0})
    keep_fastest(tier, tier.decode, 100, tier.clock)
    assert len(tier.steps) < 50
    assert tier.used[-1] == "hybrid"


@pytest.mark.parametrize(
    ("plans", "max_steps"),
    [
        pytest.param({}, 100, id="all experts are in VRAM, or a way was asked for"),
        pytest.param({"cpu": (0, 0)}, 100, id="one way"),
        pytest.param(PLANS, 0, id="no room for a token"),
    ],
)
def test_where_there_is_nothing_to_choose(plans: Mapping[str, Sequence[int]], max_steps: int) -> None:
    tier = FakeTier({}, plans)
    assert keep_fastest(tier, tier.decode, max_steps, tier.clock) == {}
    assert not tier.steps
    assert not tier.used
