"""Findings about CPUs, memory and disk."""

from __future__ import annotations

import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions
from pathlib import Path

import pytest

from strata.doctor.finding import Finding, Level, lines
from strata.doctor.host import check_disk, check_host
from strata.doctor.packages import EXTRAS, SERVE
from strata.doctor.software import check_software
from strata.errors import HardwareError
from tests.doctor.machine import CPUINFO, GIB, machine, write


@pytest.fixture(autouse=True)
def _four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


def found(root: Path, num_gpus: int = 1) -> dict[str, Finding]:
    return {finding.topic: finding for finding in check_host(root, num_gpus=num_gpus, cache=root / "cache/stores")}


def test_a_healthy_host(tmp_path: Path) -> None:
    findings = found(machine(tmp_path))
    faults = {topic for topic, finding in findings.items() if finding.level is not Level.OK}
    assert faults <= {"cache"}, "the disk of the tests may be small"
    assert findings["cpu"].message == "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz, 4 CPUs usable"
    assert findings["cpu features"].message == "AVX2; not AVX-512, VNNI, AMX"
    assert findings["NUMA"].message == "node 0: 14 CPUs, 32.0 GiB; node 1: 14 CPUs, 32.0 GiB"
    assert findings["memory"].message == "64.0 GiB, 60.0 GiB free for this process"
    assert findings["memlock"].message == "unlimited"
    assert findings["hugepages"].message == "none reserved; transparent: madvise"


@pytest.mark.parametrize(
    ("files", "topic", "words"),
    [
        pytest.param({"proc/cpuinfo": CPUINFO.replace("avx2", "avx")}, "cpu features", "AVX2", id="an old CPU"),
        pytest.param(
            {"proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n"}, "memory", "memory limit", id="full"
        ),
        pytest.param(
            {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"},
            "hugepages",
            "echo madvise",
            id="no large pages",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "150000 100000\n"},
            "cpu limit",
            "whole CPUs",
            id="throttled",
        ),
    ],
)
def test_what_costs_speed_is_a_warning_with_advice(
    tmp_path: Path, files: dict[str, str], topic: str, words: str
) -> None:
    root = machine(tmp_path)
    write(root, files)
    finding = found(root)[topic]
    assert finding.level is Level.WARN
    assert words in finding.advice


def test_reserved_pages_do_as_well(tmp_path: Path) -> None:
    root = machine(tmp_path, thp="always madvise [never]")
    write(root / "sys/kernel/mm/hugepages/hugepages-2048kB", {"nr_hugepages": "512", "free_hugepages": "500"})
    finding = found(root)["hugepages"]
    assert finding.level is Level.OK
    assert finding.message == "500 of 512 pages of 2.0 MiB free; transparent: never"


def test_locked_memory_matters_only_with_a_card(tmp_path: Path) -> None:
    root = machine(tmp_path, memlock="8388608")
    assert found(root, num_gpus=0)["memlock"].level is Level.OK
    finding = found(root, num_gpus=1)["memlock"]
    assert finding.level is Level.WARN
    assert "ulimit -l unlimited" in finding.advice
    assert "8.0 MiB may be locked" in finding.message


def test_limits_of_the_control_group_are_told(tmp_path: Path) -> None:
    root = machine(tmp_path)
    write(
        root,
        {
            "proc/self/cgroup": "0::/pod\n",
            "sys/fs/cgroup/pod/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pod/cpu.max": "400000 100000\n",
        },
    )
    findings = found(root)
    assert findings["memory limit"].message == "control group: 8.0 GiB"
    assert findings["memory"].message == "64.0 GiB, 7.0 GiB free for this process"
    assert findings["cpu limit"].level is Level.OK
    assert "allows 4 CPUs" in findings["cpu limit"].message


def test_a_disk_without_room(tmp_path: Path) -> None:
    finding = check_disk(tmp_path / "not/there/yet", needed=1 << 60)
    assert finding.level is Level.WARN
    assert "STRATA_CACHE_DIR" in finding.advice
    assert check_disk(tmp_path, needed=1).level is Level.OK


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as root, who may write anywhere
    finding = check_disk(tmp_path, needed=1)
    assert finding.level is Level.FAIL
    assert "STRATA_CACHE_DIR" in finding.advice


# --- packages


def installed(torch: str, *missing: str) -> dict[str, Finding]:
    def version_of(name: str) -> str:
        if name in missing:
            raise PackageNotFoundError(name)
        return torch if name == "torch" else "1.0"

    return {finding.topic: finding for finding in check_software(has_gpu=True, version_of=version_of)}


def test_packages() -> None:
    assert installed("2.10.0")["packages"].level is Level.OK
    assert "torch" not in installed("2.10.0")
    missing = installed("2.10.0", "torch", "gguf")["packages"]
    assert missing.level is Level.FAIL
    assert missing.message == "not installed: torch, gguf"
    assert ".[serve]" in missing.advice


def test_a_torch_for_cpus_beside_a_card() -> None:
    finding = installed("2.10.0+cpu")["torch"]
    assert finding.level is Level.WARN


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_needed_is_what_the_wheel_s_extra_brings(extra: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    brought = project["optional-dependencies"][extra]
    assert set(EXTRAS[extra]) == {re.split(r"[<>=~!;\[ ]", requirement)[0].lower() for requirement in brought}


def test_each_module_is_of_its_package() -> None:
    owners = packages_distributions()
    for table in EXTRAS.values():
        for package, module in table.items():
            found = owners[module.partition(".")[0]]
            assert package in {owner.lower().replace("_", "-") for owner in found}, module


def test_this_environment_has_what_is_needed() -> None:
    findings = {finding.topic: finding for finding in check_software(has_gpu=False)}
    assert findings["packages"].level is Level.OK
    assert all(name in findings["packages"].message for name in SERVE)


@pytest.mark.parametrize(
    ("variants", "level", "message"),
    [
        (("scalar", "avx2"), Level.OK, "avx2 for experts on the CPU"),
        (("scalar",), Level.WARN, "scalar alone"),
    ],
)
def test_kernels_for_experts_on_the_cpu(variants: tuple[str, ...], level: Level, message: str) -> None:
    *_, finding = check_software(has_gpu=False, kernels_of=lambda: variants)
    assert (finding.topic, finding.level, finding.message) == ("CPU kernels", level, message)


def test_a_library_that_does_not_load() -> None:
    def missing() -> tuple[str, ...]:
        raise HardwareError("libstrata.so: no such file")

    *_, finding = check_software(has_gpu=False, kernels_of=missing)
    assert finding.level is Level.WARN
    assert "no such file" in finding.message
    assert "make native" in finding.advice


# --- the report


def test_advice_stands_below_its_finding() -> None:
    findings = [Finding("cpu", Level.OK, "fine"), Finding("disk", Level.FAIL, "full", "make room")]
    assert lines(findings) == [
        "OK    cpu            fine",
        "FAIL  disk           full",
        "                     -> make room",
    ]


def test_a_fault_without_advice_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        Finding("cpu", Level.WARN, "slow")
