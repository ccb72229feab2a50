"""What the machine gives this process: CPUs and memory, as the host and the control group (v1 or v2) leave them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 where there is no limit


def num_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may keep busy: its affinity, and the control groups' quota rounded up."""
    cpus = len(os.sched_getaffinity(0))
    quota = cpu_limit(root)
    if quota is not None:
        cpus = min(cpus, math.ceil(quota))
    return max(1, cpus)


def cpu_limit(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time that the tightest control group allows; None where none limits it."""
    quotas = [quota for directory in _cgroup_directories(root, "cpu") if (quota := _cpu_quota(directory)) is not None]
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the tightest control group allows; None where none limits it."""
    limits = [
        limit
        for directory in _cgroup_directories(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := _number(directory / name)) is not None and limit < _UNLIMITED
    ]
    return min(limits, default=None)


def huge_page_limit(page_bytes: int, root: Path = Path("/")) -> int | None:
    """Bytes in huge pages of that size that the tightest control group allows; None where none limits it."""
    name = f"hugetlb.{page_bytes >> 20}MB" if page_bytes < 1 << 30 else f"hugetlb.{page_bytes >> 30}GB"
    limits = [
        limit
        for directory in _cgroup_directories(root, "hugetlb")
        for file in (f"{name}.max", f"{name}.limit_in_bytes")
        if (limit := _number(directory / file)) is not None and limit < _UNLIMITED
    ]
    return min(limits, default=None)


def disk_bytes_read(root: Path = Path("/")) -> int | None:
    """Bytes that this process has had read from disks, mapped files included; None where the kernel does not tell."""
    try:
        lines = (root / "proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)


def own_memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """Bytes of this process's memory that is no file's, and of these the bytes in huge pages that the kernel found by
    itself; None where it does not tell."""
    try:
        lines = (root / "proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    sizes = {name: int(value.split()[0]) * 1024 for name, value in (line.split(":") for line in lines[1:])}
    return sizes["Anonymous"], sizes["AnonHugePages"]


def total_memory(root: Path = Path("/")) -> int:
    """Bytes of the host's memory."""
    return _meminfo(root, "MemTotal")


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may still take: what the host has free, and what every control group above it
    leaves. Page cache that can be dropped counts as free."""
    available = _meminfo(root, "MemAvailable")
    for directory in _cgroup_directories(root, "memory"):
        left = _memory_left(directory)
        if left is not None:
            available = min(available, left)
    return max(0, available)


def _meminfo(root: Path, key: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} names no {key}")


def _cgroup_directories(root: Path, controller: str) -> Iterator[Path]:
    """The process's group in v2's one tree or in v1's tree of ``controller``, and all groups above it.

    In a container the path that /proc names may lie outside of what is mounted; the mount's own top is then the group.
    """
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount if not controllers else mount / controller
        directory = top / path.lstrip("/")
        while True:
            if directory.is_dir():
                yield directory
            if directory in (top, mount, root):
                break
            directory = directory.parent


def _memory_left(directory: Path) -> int | None:
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _number(directory / limit_name), _number(directory / usage_name)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            return limit - usage + _stat(directory / "memory.stat", cache_name)
    return None


def _cpu_quota(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    v1_quota, v1_period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return v1_quota / v1_period if v1_quota is not None and v1_period and v1_quota > 0 else None


def _number(path: Path) -> int | None:
    """None where the file is not there, or says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, key: str) -> int:
    try:
        table = dict(line.split() for line in path.read_text().splitlines())
        return int(table.get(key, 0))
    except (OSError, ValueError):
        return 0
