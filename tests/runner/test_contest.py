"""Ways to missing experts, by what their decode steps take: the slowest is never kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strata.config import DeviceConfig
from strata.experts.tier import Tier
from strata.experts.ways import Way
from strata.runner import runner
from strata.runner.contest import MAX_STEPS, keep_fastest
from strata.runner.runner import Runner
from strata.runner.step import StepResult
from strata.scheduler.batch import Batch

WAYS = ("hybrid", "fetch", "cpu")


class Steps:
    """Take what ``seconds`` says of the way in use; now and then something else gets in the way."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self.now = 0.0
        self.used: list[str] = []
        self.steps: list[int] = []

    def contest(self, ways: Sequence[str] = WAYS, max_steps: int = 100) -> tuple[str, dict[str, float]]:
        return keep_fastest(ways, self.used.append, self.decode, max_steps, lambda: self.now)

    def decode(self, step: int) -> None:
        self.steps.append(step)
        self.now += self._seconds[self.used[-1]] * (20 if len(self.steps) % 9 == 0 else 1)


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
    steps = Steps(seconds)
    way, found = steps.contest()
    assert way == kept
    assert found == pytest.approx(seconds)
    assert steps.used[-1] == kept
    assert f"kept: {kept}" in caplog.text
    assert f"cpu {1 / seconds['cpu']:.1f} tok/s" in caplog.text


def test_every_way_starts_the_same_text_anew() -> None:
    steps = Steps({"hybrid": 0.01, "fetch": 0.01, "cpu": 0.01})
    steps.contest()
    assert steps.steps[-3 * MAX_STEPS :] == 3 * list(range(MAX_STEPS))
    assert steps.used == ["hybrid", *WAYS, *WAYS, "hybrid"]


def test_slow_steps_are_few() -> None:
    steps = Steps({"hybrid": 0.5, "fetch": 2.0, "cpu": 1.0})
    assert steps.contest()[0] == "hybrid"
    assert len(steps.steps) < 50


@pytest.mark.parametrize(
    ("ways", "max_steps"),
    [
        pytest.param(["cpu"], 100, id="one way: it was asked for"),
        pytest.param(["cpu", "fetch"], 0, id="no room for a token"),
    ],
)
def test_where_there_is_nothing_to_choose(ways: Sequence[str], max_steps: int) -> None:
    steps = Steps({})
    assert steps.contest(ways, max_steps) == ("cpu", {})
    assert steps.used == ["cpu"]
    assert not steps.steps


class FakeTier(Tier):
    """With two ways; it writes down which begin."""

    def __init__(self) -> None:
        self.begun: list[Way] = []

    def choices(self) -> Sequence[Way]:
        return Way((0, 0, 1)), Way((0, 0, 0), "gate")

    def begin(self, way: Way) -> None:
        self.begun.append(way)


def test_all_ways_decode_one_text_that_does_not_repeat_itself() -> None:
    """The likeliest token is always the same here: with its experts in VRAM whoever fetches would look fast."""
    tier, texts = FakeTier(), list[list[int]]()

    def run(batch: Batch) -> StepResult:
        (sequence,) = batch.sequences
        if sequence.start == 0:
            texts.append([])
        texts[-1] += sequence.token_ids
        logits = torch.zeros(1, 50)
        logits[0, 7], logits[0, 8] = 1.0, torch.nan
        return StepResult(logits, torch.tensor([7]))

    mine: Any = SimpleNamespace(_graphs=None, max_model_len=16, block_size=4, num_states=0, check=lambda: None, run=run)
    Runner.choose_way(mine, tier, DeviceConfig(), lambda: None)
    longest = max(texts, key=len)
    assert len(longest) == 16
    assert len(set(longest)) > 8
    assert len(texts) > 2
    assert all(text == longest[: len(text)] for text in texts)
    assert set(mine.way_seconds) == set(tier.choices())


def test_each_way_runs_the_steps_that_were_captured_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, captures = FakeTier(), list[Way]()
    mine: Any = SimpleNamespace(_graphs=None, max_model_len=8, num_states=0, check=lambda: None)

    def capture() -> None:
        captures.append(tier.begun[-1])
        mine._graphs = tier.begun[-1]

    def go_each(ways: Sequence[Way], begin: Any, *arguments: Any) -> tuple[Way, dict[Way, float]]:
        for way in ways:
            begin(way)
            assert mine._graphs == tier.begun[-1] == way
        return ways[1], {}

    monkeypatch.setattr(runner, "keep_fastest", go_each)
    Runner.choose_way(mine, tier, DeviceConfig(), capture)
    assert captures == list(tier.choices())
    assert mine.way == tier.choices()[1]


def test_settings_that_are_of_no_use_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    choose = partial(Runner.choose_way, SimpleNamespace(), Tier())
    choose(DeviceConfig(routing_device="auto"), lambda: None)
    assert not caplog.text
    choose(DeviceConfig(prefetch="gate", routing_device="cpu"), lambda: None)
    assert "--prefetch gate does nothing here" in caplog.text
    assert "--routing-device cpu does nothing here" in caplog.text
