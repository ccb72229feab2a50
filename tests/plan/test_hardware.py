"""Control groups of both versions, written into a directory that stands for the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata.plan.hardware import available_memory, disk_bytes_read, huge_page_limit, num_cpus, own_memory

GIB = 1 << 30
V1_NO_LIMIT = "9223372036854771712"


def machine(root: Path, files: dict[str, str], available: int = 8 * GIB) -> Path:
    files = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {available // 1024} kB\n", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_control_groups_the_host_decides(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path, {})) == 8 * GIB
    assert num_cpus(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/pod\n",
                "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            2 * GIB,
            id="v2, page cache counts as free",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/slice/pod\n",
                "sys/fs/cgroup/slice/memory.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/slice/memory.current": f"{GIB}\n",
                "sys/fs/cgroup/slice/pod/memory.max": "max\n",
                "sys/fs/cgroup/slice/pod/memory.current": "5\n",
            },
            GIB,
            id="v2, a limit further up",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/pod\n3:cpu,cpuacct:/pod\n",
                "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": f"{3 * GIB}\n",
                "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/pod/memory.stat": "total_inactive_file 4096\n",
            },
            2 * GIB + 4096,
            id="v1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/kubepods/outside/of/the/container\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
            },
            GIB,
            id="v1, the mount's top is the group",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{V1_NO_LIMIT}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
            },
            8 * GIB,
            id="v1 without a limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{GIB}\n",
                "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
            },
            0,
            id="beyond its limit",
        ),
    ],
)
def test_memory(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_memory(machine(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "150000 100000\n"}, 2, id="v2, rounded up"
        ),
        pytest.param({"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "max 100000\n"}, 4, id="v2, none"),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/pod\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            },
            1,
            id="v1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/pod\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            },
            4,
            id="v1, none",
        ),
    ],
)
def test_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert num_cpus(machine(tmp_path, files)) == expected


def test_bytes_read_from_disks(tmp_path: Path) -> None:
    assert disk_bytes_read(tmp_path) is None, "the kernel does not tell"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/io").write_text("rchar: 1948\nread_bytes: 8192\nwrite_bytes: 12\n")
    assert disk_bytes_read(tmp_path) == 8192
    (tmp_path / "proc/self/io").write_text("rchar: 1948\n")
    assert disk_bytes_read(tmp_path) is None


def test_own_memory(tmp_path: Path) -> None:
    assert own_memory(tmp_path) is None, "the kernel does not tell"
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "5600000-7ffd7946e000 ---p 00000000 00:00 0 [rollup]\nRss:   9 kB\nAnonymous:   6 kB\nAnonHugePages: 2 kB\n"
    (tmp_path / "proc/self/smaps_rollup").write_text(text)
    assert own_memory(tmp_path) == (6144, 2048)


def test_this_machine() -> None:
    assert available_memory() > 0
    assert num_cpus() >= 1


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        pytest.param({}, (None, None), id="none"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/slice/pod\n",
                "sys/fs/cgroup/slice/pod/hugetlb.2MB.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/slice/pod/hugetlb.1GB.max": "max\n",
                "sys/fs/cgroup/slice/hugetlb.1GB.max": "0\n",
            },
            (2 * GIB, 0),
            id="v2",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:hugetlb:/pod\n3:memory:/\n",
                "sys/fs/cgroup/hugetlb/pod/hugetlb.2MB.limit_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/hugetlb/pod/hugetlb.1GB.limit_in_bytes": f"{V1_NO_LIMIT}\n",
            },
            (GIB, None),
            id="v1",
        ),
    ],
)
def test_what_control_groups_allow_of_huge_pages(
    tmp_path: Path, files: dict[str, str], limits: tuple[int | None, int | None]
) -> None:
    root = machine(tmp_path, files)
    assert (huge_page_limit(2 << 20, root), huge_page_limit(GIB, root)) == limits
