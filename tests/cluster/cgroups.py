"""The control group below which all pods of a cluster live, on cgroup v1 and v2."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.cluster.errors import StartError

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")  # what the kubelet and runc use


def hierarchies() -> list[Path]:
    """Where groups are made: one place on v2, one for every controller on v1 (and v2 beside it, if mounted)."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount_point, kind = Path(before.split()[4]), after.split()[0]
        # A machine may show one hierarchy in two places; the kubelet and runc look below /sys/fs/cgroup.
        if kind in ("cgroup", "cgroup2") and mount_point.is_relative_to(_ROOT):
            found.append(mount_point)
    if not found:
        raise StartError("no control groups are mounted below /sys/fs/cgroup; the kubelet cannot run without them")
    return found


def create(name: str) -> None:
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if (hierarchy / "cgroup.controllers").exists():
            for parent in (hierarchy, group):
                _enable_controllers(parent)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # on v1 a new group may use no CPU until told
            if (
                (hierarchy / setting).exists()
                and (group / setting).exists()
                and not (group / setting).read_text().strip()
            ):
                with suppress(OSError):
                    (group / setting).write_text((hierarchy / setting).read_text())


def kill(name: str) -> None:
    """Kills whatever is in the group and waits until nobody is; then removes it."""
    groups = [hierarchy / name for hierarchy in hierarchies()]
    deadline = time.monotonic() + 30
    while any(group.exists() for group in groups):
        for group in groups:
            for inner in _inside_out(group):
                _kill_members(inner)
                with suppress(OSError):  # not empty yet
                    inner.rmdir()
        if time.monotonic() > deadline:
            left = ", ".join(str(group) for group in groups if group.exists())
            raise StartError(f"these control groups do not become empty although everything in them is killed: {left}")
        time.sleep(0.02)


def _enable_controllers(group: Path) -> None:
    for controller in _CONTROLLERS:
        # One at a time: a controller that is busy elsewhere must not keep the others out.
        with suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _inside_out(group: Path) -> Iterator[Path]:
    if group.is_dir():
        for folder, _, _ in os.walk(group, topdown=False):
            yield Path(folder)


def _kill_members(group: Path) -> None:
    with suppress(OSError):
        pids = (group / "cgroup.procs").read_text().split()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if pids and (group / "freezer.state").exists():  # a frozen process does not notice that it is dead
            (group / "freezer.state").write_text("THAWED")
        if pids and (group / "cgroup.freeze").exists():
            (group / "cgroup.freeze").write_text("0")
