"""What measurements say of where they ran, of the plan and of what was moved; with figures of a card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata.bench import report
from strata.bench.loaded import Loaded
from strata.bench.report import Moved, Setting, Speed
from strata.config import DeviceConfig, EngineConfig
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.plan.expect import Place
from strata.plan.placement import ExpertBytes, place_experts
from strata.plan.speed import Rates, StepTime
from strata.store.locate import resolve
from strata.store.reader import Store
from tests.engine.tiny_llama import EXPERTS, write_checkpoint

RATES = Rates(4.35e12, pcie=55e9, cpu=102e9, dram=157e9, flops=700e12)
SETTING = Setting("m", "int4", "cuda (card)", 16, RATES, Place(0.5, "auto"), 6144)
SPEED = Speed(100.0, StepTime({"device memory": 0.002, "experts from host memory": 0.003}, 200.0), None)


def text(rows: dict[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in rows.items())


def test_the_plan_stands_beside_the_measurement() -> None:
    found = replace(SPEED, expected=StepTime({"launches": 0.001, "experts": 0.007}, 125.0))
    assert text(found.rows("decode")) == (
        "bound: 200.0 tok/s, by experts from host memory\n"
        "decode / bound: 0.50\n"
        "predicted: 125.0 tok/s (experts 7.00 ms, launches 1.00 ms)\n"
        "predicted / it: 1.25"
    )
    figures = found.as_dict()
    assert (figures["expected_tokens_per_second"], figures["expected_ratio"]) == (125.0, 1.25)
    assert json.loads(json.dumps(figures)) == figures


def test_without_a_card_nothing_is_predicted() -> None:
    assert "predicted" not in text(SPEED.rows("decode"))
    assert SPEED.as_dict()["expected_ratio"] is None


def test_where_experts_are_is_said_where_it_matters() -> None:
    assert SETTING.rows()["placement"] == "50.0% of 6144 experts in VRAM, others auto"
    assert SETTING.rows()["memory"] == "4350.0 GB/s read, PCIe 55.0, host 102.0"
    assert "placement" not in replace(SETTING, place=Place()).rows()
    on_cpu = replace(SETTING, device="cpu", place=None)
    assert on_cpu.rows()["memory"] == "4350.0 GB/s read"
    assert on_cpu.vram == 1
    assert replace(on_cpu, rates=Rates(8e9, flops=43e9)).rows()["products"] == "43 GFLOP/s"


def test_a_setting_tells_where_a_store_s_experts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(report, "measure_rates", lambda device: RATES)
    store = Store.open(resolve(str(write_checkpoint(tmp_path / "tiny", **EXPERTS)), "bf16"))
    placement = place_experts(ExpertBytes(2, 4, 1000), 0, at_most=0)
    runner: Any = SimpleNamespace(
        device=SimpleNamespace(type="cuda"),
        device_name="cuda (card)",
        placement=replace(placement, num_resident=2),
    )
    config = EngineConfig("m", device=DeviceConfig(expert_placement="cpu"))
    found = Setting.of(Loaded(store, runner, config))
    assert found.place == Place(0.25, "cpu")
    assert (found.num_experts, found.dtype, found.rates) == (8, "bf16", RATES)
    runner.device.type = "cpu"
    assert Setting.of(Loaded(store, runner, config)).place is None


def test_counted_experts_are_bytes_by_way() -> None:
    def stats(*counts: ExpertCounts) -> ExpertStats:
        return ExpertStats(dict(enumerate(counts)), num_vram=64, num_host=256, expert_bytes=1000)

    before = stats(ExpertCounts(needed=10, in_vram=10), ExpertCounts(streamed=7))
    after = stats(
        ExpertCounts(needed=20, in_vram=14, fetched=2), ExpertCounts(needed=10, in_vram=4, fetched=2, streamed=9)
    )
    found = Moved.counted(5000, before, after, 2)
    # Of 20 in 2 steps: 8 in VRAM, 4 fetched, 8 computed by the CPU; 2 were streamed besides.
    assert found.num_bytes == {"VRAM": 5000 + 7000, "PCIe": 3000, "CPU": 4000}
    assert found.hit_ratio == pytest.approx(0.4)
    assert text(found.rows("step")) == (
        "moved a step: VRAM 11.7 KiB, PCIe 2.9 KiB, CPU 3.9 KiB\n"
        "experts: hit ratio 0.400: 40.0% in VRAM, 20.0% fetched, 40.0% on the CPU"
    )


def test_what_is_not_counted_is_as_planned() -> None:
    found = Moved.of(100.0, 1000.0, setting=SETTING)
    assert found.num_bytes == {"VRAM": 1100.0, "PCIe": 500.0, "CPU": 0.0}
    assert found.hit_ratio is None
    assert "experts" not in found.rows("prompt")
    on_cpu = Moved.of(100.0, 1000.0, setting=replace(SETTING, device="cpu", place=None))
    assert on_cpu.num_bytes == {"RAM": 1100.0}, "a CPU has no VRAM"
