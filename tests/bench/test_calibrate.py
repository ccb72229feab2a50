"""`strata calibrate`: what is measured, printed and kept, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.bench.calibrate import CalibrationReport
from strata.cli.main import main
from strata.experts import calibration, hybrid
from strata.kernels.layer import Kernels
from strata.kernels.operations import REFERENCE
from strata.runner import runner as runner_module
from strata.runner.runner import Runner
from tests.engine.tiny_llama import write_checkpoint
from tests.experts.blob_kernels import CachedKernels
from tests.experts.test_resident import ARCHITECTURES, EXPERTS

REPORT = CalibrationReport(
    model="m",
    facts={
        "card": "NVIDIA H200",
        "driver": "580.65.06",
        "cpu": "Xeon",
        "cpu_threads": 14,
        "num_experts": 128,
        "top_k": 2,
        "format": "int4",
    },
    file="/cache/1.json",
    num_layers=10,
    num_slots=64,
    expert_bytes=3_000_000,
    fetch_seconds=60e-6,
    seconds_a_layer={1: {0: 40e-6, 1: 62e-6}, 2: {0: 75e-6, 1: 64e-6, 2: 120e-6}},
    split=(0, 0, 1, 2),
    step_seconds={"hybrid": 0.005, "fetch": 0.008, "cpu": 0.004},
)


def test_rates_of_each_way_alone_and_of_both() -> None:
    assert REPORT.rates == pytest.approx({"PCIe alone": 50e9, "CPU alone": 80e9, "both at once": 93.75e9})
    assert REPORT.experts_tokens_per_second == pytest.approx(1 / 640e-6)
    lines = "\n".join(REPORT.lines())
    assert "both at once     93.8 GB/s, 1 of 2 fetched" in lines
    assert "kept in          /cache/1.json" in lines
    assert "\n      1        0  0: 40, 1: 62\n      2        1  0: 75, 1: 64, 2: 120\n\n" in lines
    assert lines.endswith("\n  250.0  cpu\n  200.0  hybrid\n  125.0  fetch")
    assert "no file" in "\n".join(replace(REPORT, file=None).lines())
    assert json.loads(json.dumps(REPORT.as_dict()))["tokens_per_second"]["cpu"] == 250.0


@pytest.fixture
def moe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("strata.plan.placement.MIN_SLOTS", 1)
    return str(write_checkpoint(tmp_path / "moe", **(EXPERTS | ARCHITECTURES["a dense layer between"])))


def with_kernels(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """As though the CPU were a card, wherever there is one; each way is tried for a moment."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(runner_module, "MAX_STEPS", 2)
    monkeypatch.setattr("strata.experts.times._TRIALS", 1)
    monkeypatch.setattr(runner_module, "kernels_for", lambda device, dtype: kernels)
    monkeypatch.setattr("strata.kernels.select.kernels_for", lambda device, dtype: kernels)
    monkeypatch.setattr(Runner, "load", partial(Runner.load, compute_dtype=torch.float32))


def test_all_is_measured_anew_and_kept(
    moe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_kernels(CachedKernels(), monkeypatch)
    anew: list[bool] = []

    def find_times(*arguments: Any, **options: Any) -> Any:
        anew.append(options["anew"])
        return calibration.find_times(*arguments, **options)

    monkeypatch.setattr(hybrid, "find_times", find_times)
    assert main(["calibrate", moe, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert anew == [True]
    assert report["num_slots"] == report["facts"]["top_k"] == 2
    assert set(report["seconds_a_layer"]) == {"1", "2"}
    assert set(report["seconds_a_layer"]["2"]) == {"0", "1", "2"}
    assert {"fetch", "cpu"} <= set(report["step_seconds"])
    assert all(rate > 0 for rate in report["bytes_per_second"].values())
    kept = json.loads(Path(report["file"]).read_text())
    assert kept["seconds_a_layer"] == report["seconds_a_layer"]
    assert Path(report["file"]).parent == tmp_path / "cache" / "calibration"

    assert main(["calibrate", moe, "--expert-vram-gib", "0"]) == 0
    assert "4 in each of 2 layers, 1 of them in VRAM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "kernels", "message"),
    [
        pytest.param([], Kernels(REFERENCE, torch.float32), "not split between PCIe and CPU", id="device"),
        pytest.param(["--expert-vram-gib", "4"], CachedKernels(), "give less VRAM: --expert-vram-gib 0", id="all fit"),
        pytest.param(["--hugepages", "2Mi"], CachedKernels(), "hugepages is '2Mi'", id="huge pages without a card"),
    ],
)
def test_where_nothing_is_shared(
    moe: str,
    options: list[str],
    kernels: Kernels,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_kernels(kernels, monkeypatch)
    assert main(["calibrate", moe, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["calibrate", str(write_checkpoint(tmp_path / "dense"))]) == 2
    assert "has no routed experts" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists(), "nothing is converted before that is known"
