"""What is compared at the start: how missing experts are shared, and who guesses the next layer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strata.config import DeviceConfig
from strata.experts.base import SelfContained
from strata.kernels.layer import Router
from strata.kernels.matrix import Activation
from strata.runner import runner
from strata.runner.runner import Runner
from strata.runner.step import StepResult
from strata.runner.ways import Way, all_ways
from strata.scheduler.batch import Batch


class FakeTier(SelfContained):
    """Writes down what it is told."""

    def __init__(self, plans: Mapping[str, Sequence[int]], predictors: tuple[str, ...]) -> None:
        self.predictors = predictors
        self._plans = plans
        self.told: list[object] = []

    def plans(self) -> Mapping[str, Sequence[int]]:
        return self._plans

    def share_out(self, plan: Sequence[int]) -> None:
        self.told.append(plan)

    def prefetch(self, predictor: str) -> None:
        self.told.append(predictor)

    def computes_all(self, plan: Sequence[int] | None) -> bool:
        return plan is not None and not any(plan)

    def route_on(self, where: str) -> None:
        self.told.append(where)

    def layer(self, layer: int, activation: Activation, router: Router) -> Callable[[torch.Tensor], torch.Tensor]:
        raise AssertionError("no step runs here")


PLANS = {"hybrid": (0, 1), "cpu": (0, 0)}


@pytest.mark.parametrize(
    ("plans", "predictors", "prefetch", "names"),
    [
        pytest.param({}, (), "auto", ["as asked"], id="all experts are in VRAM"),
        pytest.param(PLANS, ("gate",), "off", ["hybrid", "cpu"], id="nobody shall guess"),
        pytest.param(PLANS, ("gate",), "gate", ["hybrid, prefetch gate", "cpu, prefetch gate"], id="who shall guess"),
        pytest.param(
            PLANS,
            ("gate",),
            "auto",
            ["hybrid", "hybrid, prefetch gate", "cpu", "cpu, prefetch gate"],
            id="whoever makes it faster",
        ),
        pytest.param({}, ("gate",), "auto", ["as asked", "as asked, prefetch gate"], id="a way that was asked for"),
    ],
)
def test_what_is_compared(
    plans: Mapping[str, Sequence[int]], predictors: tuple[str, ...], prefetch: str, names: list[str]
) -> None:
    assert list(all_ways(FakeTier(plans, predictors), prefetch, "gpu")) == names


def test_each_way_tells_the_tier_all_of_it() -> None:
    tier = FakeTier(PLANS, ("gate",))
    Way((0, 1), "gate", "cpu").begin(tier)
    Way(None, "off").begin(tier)
    assert tier.told == ["gate", "cpu", (0, 1), "off", "gpu"]


@pytest.mark.parametrize(
    ("prefetch", "routing", "names"),
    [
        pytest.param("off", "cpu", ["hybrid, routed on the CPU", "cpu, routed on the CPU"], id="as asked"),
        pytest.param("off", "auto", ["hybrid", "cpu", "cpu, routed on the CPU"], id="where the CPU computes all"),
        pytest.param("gate", "auto", ["hybrid, prefetch gate", "cpu, prefetch gate"], id="VRAM's experts change"),
    ],
)
def test_where_experts_are_chosen_is_compared(prefetch: str, routing: str, names: list[str]) -> None:
    tier = FakeTier(PLANS, ("gate",))
    tier.routers = ("gpu", "cpu")
    assert list(all_ways(tier, prefetch, routing)) == names


def test_a_choice_on_the_cpu_that_is_of_no_use_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert list(all_ways(FakeTier({}, ()), "auto", "cpu").values()) == [Way(None, "off")]
    assert "--routing-device cpu does nothing here" in caplog.text


def test_a_captured_step_serves_what_asks_alike() -> None:
    tier = FakeTier(PLANS, ())
    ways = [Way(plan, "off", router) for plan in PLANS.values() for router in ("gpu", "cpu")]
    hybrid, hybrid_cpu, cpu, cpu_cpu = (way.graph(tier) for way in ways)
    assert hybrid == cpu, "how many are fetched is read at every step"
    assert len({hybrid, hybrid_cpu, cpu_cpu}) == 3


def test_a_guess_that_is_of_no_use_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert list(all_ways(FakeTier({}, ()), "gate", "gpu").values()) == [Way(None, "off")]
    assert "--prefetch gate does nothing here" in caplog.text
    caplog.clear()
    all_ways(FakeTier({}, ()), "auto", "auto")
    assert not caplog.text


@pytest.mark.parametrize(("seconds", "way"), [({"hybrid": 2.0, "cpu": 1.0}, "cpu"), ({}, "hybrid")])
def test_the_way_that_is_kept_has_a_name(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], way: str) -> None:
    monkeypatch.setattr(runner, "keep_fastest", lambda *arguments: seconds)
    mine: Any = SimpleNamespace(_graphs=None, max_model_len=8, check=lambda: None)
    Runner.choose_ways(mine, FakeTier(PLANS, ()), DeviceConfig(prefetch="off"), lambda: None)
    assert mine.way == way


def test_all_ways_decode_one_text_that_does_not_repeat_itself() -> None:
    """The likeliest token is always the same here: with its experts in VRAM whoever fetches would look fast."""
    tier, texts = FakeTier(PLANS, ()), list[list[int]]()

    def run(batch: Batch) -> StepResult:
        (sequence,) = batch.sequences
        if sequence.start == 0:
            texts.append([])
        texts[-1] += sequence.token_ids
        logits = torch.zeros(1, 50)
        logits[0, 7], logits[0, 8] = 1.0, torch.nan
        return StepResult(logits, torch.tensor([7]))

    mine: Any = SimpleNamespace(_graphs=None, max_model_len=16, block_size=4, check=lambda: None, run=run)
    Runner.choose_ways(mine, tier, DeviceConfig(prefetch="off"), lambda: None)
    longest = max(texts, key=len)
    assert len(longest) == 16
    assert len(set(longest)) > 8
    assert len(texts) > 2
    assert all(text == longest[: len(text)] for text in texts)
    assert set(mine.way_seconds) == set(PLANS)
