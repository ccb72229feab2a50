"""Placements of experts: what is tried on a load, what is said of it; no card is asked."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from strata.bench import decode, offload
from strata.bench.decode import DecodeReport
from strata.bench.offload import Options, Placed
from strata.bench.report import Moved, Setting, Speed
from strata.config import DeviceConfig
from strata.errors import EngineError, HardwareError, OptionError
from strata.experts.tier import Tier
from strata.experts.ways import Way, all_ways
from strata.plan.expect import Place
from strata.plan.speed import Rates, StepTime

SETTING = Setting("m", "int4", "cuda (card)", 16, Rates(4e12), Place(0.5), 128)
OPTIONS = Options("m", "int4", DeviceConfig(), ("fetch", "auto", "cpu"), 1, 64, 64)


def placed(share: float, way: str, speed: float, pcie: float, cpu: float) -> Placed:
    moved = Moved({"VRAM": 1e9, "PCIe": pcie, "CPU": cpu}, share)
    rates = Speed(speed, StepTime({"device memory": 0.001}, 1000.0), StepTime({"launches": 0.004}, 250.0))
    return Placed(share, way, DecodeReport(SETTING, 1, 64, 64, {}, moved, rates, 0.1, 1 / speed))


class ThreeWays(Tier):
    """Each with who guesses and without; it writes down which begin."""

    def __init__(self) -> None:
        self.begun: list[Way] = []

    def choices(self) -> tuple[Way, ...]:
        return all_ways([(0, 1, 1), (0, 1, 2), (0, 0, 0)], "auto", "gpu")

    def begin(self, way: Way) -> None:
        self.begun.append(way)


def measured(
    monkeypatch: pytest.MonkeyPatch, tier: Tier | None, way: Way | None, setting: Setting = SETTING
) -> list[tuple[str, str]]:
    """Names of what was measured, and the ways that were predicted."""
    ways: list[str] = []

    def measure(loaded: Any, setting: Setting, *sizes: Any) -> DecodeReport:
        ways.append(setting.place.placement if setting.place else "-")
        return placed(0.5, "", 100.0, 0.0, 0.0).report

    monkeypatch.setattr(decode, "measure", measure)
    loaded: Any = SimpleNamespace(runner=SimpleNamespace(model=SimpleNamespace(tier=tier), way=way))
    found = offload.measure_ways(loaded, setting, 0.5, OPTIONS)
    return list(zip([one.way for one in found], ways, strict=True))


def test_each_way_is_taken_on_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, way = ThreeWays(), Way((0, 1, 1))
    assert measured(monkeypatch, tier, way) == [("auto (hybrid)", "auto"), ("fetch", "fetch"), ("cpu", "cpu")]
    assert tier.begun == [Way((0, 1, 2)), Way((0, 0, 0))], "the start's choice first, as it is"
    names = [name for name, _ in measured(monkeypatch, tier, replace(way, predictor="gate"))]
    assert names == ["auto (hybrid, prefetch gate)", "fetch, prefetch gate", "cpu, prefetch gate"]


def test_where_there_is_nothing_to_choose_one_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, Tier(), None, replace(SETTING, place=Place(1.0))) == [("all in VRAM", "auto")]


def test_a_line_has_rates_and_the_verdict_its_reasons() -> None:
    found = [
        placed(0.0, "auto (hybrid)", 100.0, 0.4e9, 0.6e9),
        placed(0.5, "auto (hybrid)", 160.0, 0.2e9, 0.3e9),
        placed(0.5, "cpu", 140.0, 0.0, 0.5e9),
    ]
    cells = offload.line(found[1]).split()
    assert cells == ["50%", "auto", "(hybrid)", "160.0", "250.0", "0.16", "0.500", "160.0", "32.0", "48.0"]
    assert offload.verdict(found) == [
        "best: 50% of the experts in VRAM, auto (hybrid): 160.0 tok/s",
        "- cpu reaches 140.0 there: missing experts come at 70.0 GB/s, against 80.0",
        "- with 0% in VRAM auto (hybrid) is fastest, 100.0 tok/s: a step misses 954 MiB of experts, against 477",
    ]


def test_a_process_that_dies_is_an_error_that_says_so() -> None:
    with pytest.raises(EngineError, match="is there memory enough"):
        offload._in_a_process(os._exit, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ways": ("fetch", "disk")}, OptionError, "way 'disk' is unknown; auto, fetch, cpu"),
        ({"batch_size": 0}, OptionError, "batch_size is 0"),
        ({"device": DeviceConfig(routing_device="auto")}, OptionError, "routing_device is 'auto'; 'gpu' is needed"),
        ({"device": DeviceConfig("cpu")}, HardwareError, "there is nothing to place"),
    ],
)
def test_what_cannot_be_measured(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        next(offload.run("m", progress=lambda *_: None, **arguments))
