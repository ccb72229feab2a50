"""Facts of the host from trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.plan.hardware import cpu_limit, memory_limit, total_memory
from strata.plan.host import (
    HugePages,
    NumaNode,
    cpu_flags,
    cpu_name,
    driver_version,
    huge_pages,
    memlock_limit,
    numa_node_of_pci,
    numa_nodes,
    parse_cpus,
    transparent_huge_pages,
)
from tests.doctor.machine import GIB, machine, write


def test_the_first_cpu_speaks_for_all(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert cpu_name(root).startswith("Intel(R) Xeon(R) CPU E5-2680 v4")
    assert cpu_flags(root) == {"fpu", "sse4_2", "avx2", "fma"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 2024\nGCC version: 11\n",
            "550.54.15",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@a)\n", "580.65.06"),
        ("something else 1.2.3 \n", "none"),
        (None, "none"),
    ],
)
def test_driver(tmp_path: Path, text: str | None, version: str) -> None:
    if text is not None:
        write(tmp_path, {"proc/driver/nvidia/version": text})
    assert driver_version(tmp_path) == version


def test_numa(tmp_path: Path) -> None:
    root = machine(tmp_path)
    low, high = numa_nodes(root)
    assert low == NumaNode(0, frozenset(range(14)), 32 * GIB)
    assert (high.number, min(high.cpus), max(high.cpus)) == (1, 14, 27)
    assert numa_node_of_pci("00000000:65:00.0", root) == 1
    assert numa_node_of_pci("00000000:66:00.0", root) is None


def test_a_device_without_a_node_tells_minus_one(tmp_path: Path) -> None:
    assert numa_node_of_pci("00000000:65:00.0", machine(tmp_path, nodes=1)) is None


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set())])
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(("memlock", "limit"), [("unlimited", None), ("8388608", 8 << 20)])
def test_memlock_is_the_soft_limit(tmp_path: Path, memlock: str, limit: int | None) -> None:
    assert memlock_limit(machine(tmp_path, memlock=memlock)) == limit


def test_huge_pages(tmp_path: Path) -> None:
    root = machine(tmp_path)
    write(root / "sys/kernel/mm/hugepages/hugepages-1048576kB", {"nr_hugepages": "8\n", "free_hugepages": "5\n"})
    write(root / "sys/kernel/mm/hugepages/hugepages-1048576kB", {"resv_hugepages": "2\n"})
    assert huge_pages(root) == (HugePages(2 << 20, 0, 0), HugePages(GIB, 8, 3))
    assert transparent_huge_pages(root) == "madvise"


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path) == frozenset()
    assert cpu_name(tmp_path) == "unknown CPU"
    assert numa_nodes(tmp_path) == ()
    assert huge_pages(tmp_path) == ()
    assert transparent_huge_pages(tmp_path) is None
    assert memlock_limit(tmp_path) is None


def test_limits_of_control_groups(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert total_memory(root) == 64 * GIB
    assert memory_limit(root) is None
    assert cpu_limit(root) is None
    write(
        root,
        {
            "proc/self/cgroup": "0::/slice/pod\n",
            "sys/fs/cgroup/slice/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/slice/pod/memory.max": "max\n",
            "sys/fs/cgroup/slice/pod/cpu.max": "150000 100000\n",
        },
    )
    assert memory_limit(root) == 8 * GIB
    assert cpu_limit(root) == 1.5


def test_this_machine() -> None:
    assert cpu_name()
    assert all(node.memory_bytes > 0 for node in numa_nodes())
