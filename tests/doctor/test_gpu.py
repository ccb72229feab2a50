"""Findings about driver and cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.doctor.finding import Finding, Level
from strata.doctor.gpu import check_gpus
from strata.plan.fake_nvml import GIB, FakeCard, FakeNvml
from tests.doctor.machine import machine

NEAR, FAR = frozenset(range(14, 28)), frozenset(range(28))


def found(root: Path, library: FakeNvml, cpus: frozenset[int] = NEAR) -> dict[str, Finding]:
    return {finding.topic: finding for finding in check_gpus(root, library, cpus=cpus)[0]}


def test_a_healthy_card(tmp_path: Path) -> None:
    findings = found(machine(tmp_path), FakeNvml([FakeCard()]))
    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert "23.5 GiB free; 21.6 GiB usable" in findings["gpu 0 VRAM"].message
    assert findings["gpu 0 PCIe"].message == "now 1.0 x16, at most 3.0 x16 (a card at rest lowers the generation)"
    assert findings["gpu 0 power"].message == "limit 350 W, default 350 W, may be 100 to 350 W"
    assert findings["driver"].message == "580.65.06 (CUDA 13.0)"


@pytest.mark.parametrize(
    ("card", "topic", "words"),
    [
        pytest.param(FakeCard(compute_capability=(7, 5)), "gpu 0", "8.0 or newer", id="no bf16"),
        pytest.param(FakeCard(vram_used_bytes=12 * GIB), "gpu 0 VRAM", "nvidia-smi", id="shared with others"),
        pytest.param(FakeCard(pcie_width=8), "gpu 0 PCIe", "slot", id="half of the lanes"),
        pytest.param(FakeCard(power_limit=250_000), "gpu 0 power", "nvidia-smi -pl 350", id="slowed down"),
    ],
)
def test_what_costs_speed_is_a_warning_with_advice(tmp_path: Path, card: FakeCard, topic: str, words: str) -> None:
    finding = found(machine(tmp_path), FakeNvml([card]))[topic]
    assert finding.level is Level.WARN
    assert words in finding.advice


def test_cpus_beyond_the_card_s_node(tmp_path: Path) -> None:
    root, library = machine(tmp_path), FakeNvml([FakeCard()])
    assert found(root, library)["gpu 0 NUMA"].level is Level.OK
    far = found(root, library, FAR)["gpu 0 NUMA"]
    assert far.level is Level.WARN
    assert "numactl --cpunodebind=1 --preferred=1" in far.advice


def test_one_node_needs_no_binding(tmp_path: Path) -> None:
    assert "gpu 0 NUMA" not in found(machine(tmp_path, nodes=1), FakeNvml([FakeCard()]), FAR)


def test_a_driver_too_old_for_torch_fails(tmp_path: Path) -> None:
    finding = found(machine(tmp_path), FakeNvml([FakeCard()], driver="535.183.01", cuda=12020))["driver"]
    assert finding.level is Level.FAIL
    assert "550" in finding.advice


def test_a_lost_card_fails_and_the_others_are_looked_at(tmp_path: Path) -> None:
    findings, facts = check_gpus(machine(tmp_path), FakeNvml([FakeCard(lost=True), FakeCard()]), cpus=NEAR)
    levels = {finding.topic: finding.level for finding in findings}
    assert levels["gpu 0"] is Level.FAIL
    assert levels["gpu 1 VRAM"] is Level.OK
    assert [gpu.index for gpu in facts] == [1]


def test_a_card_that_tells_little(tmp_path: Path) -> None:
    card = FakeCard(power_limit=None, pcie_width=None, max_pcie_width=None)
    findings = found(machine(tmp_path), FakeNvml([card]))
    assert findings["gpu 0 power"].level is findings["gpu 0 PCIe"].level is Level.OK


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(FakeNvml(init_error=FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND), id="no driver"),
        pytest.param(FakeNvml(), id="a driver and no card"),
    ],
)
def test_no_card_is_no_failure_and_says_what_it_means(tmp_path: Path, library: FakeNvml) -> None:
    finding = found(machine(tmp_path), library)["gpu"]
    assert finding.level is Level.WARN
    assert "models run on the CPU" in finding.message
