"""The cluster's processes, found by a mark in their environment.

A mark cannot go stale as a pid file does: it is there from the first instant, outlives whoever started the process,
and does not pass to a stranger who gets the same pid.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import StartError, last_lines
from tests.cluster.instance import Instance

_STATE = "STRATA_CLUSTER_STATE"
_ROLE = "STRATA_CLUSTER_ROLE"
# On its way to becoming the role's program, a process is one of these.
_LAUNCHERS = frozenset({"nsenter", "setsid", "unshare", "dash", "bash", "sh", "env"})


@dataclass(frozen=True)
class Process:
    pid: int
    role: str
    program: str  # file name of what it runs now
    start: int  # clock ticks since boot; with the pid, names one process for ever

    @property
    def is_main(self) -> bool:
        """False for what the role's own process started: shims, network plugins."""
        return self.program == self.role or self.program in _LAUNCHERS or self.role == "machine"


def environment(instance: Instance, role: str, path: Iterable[Path]) -> dict[str, str]:
    """All that a process of the cluster gets to see; the caller's proxies and tokens are not for it."""
    return {
        _STATE: str(instance.state),
        _ROLE: role,
        "HOME": "/root",
        "PATH": ":".join(
            [*map(str, path), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        ),
    }


def find(instance: Instance) -> list[Process]:
    """Every process of the cluster outside its pods."""
    mark = f"{_STATE}={instance.state}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # ended meanwhile, or a kernel thread
            variables = (folder / "environ").read_bytes().split(b"\0")
            if mark in variables:
                role = next(v for v in variables if v.startswith(f"{_ROLE}=".encode())).partition(b"=")[2].decode()
                program = Path((folder / "exe").readlink()).name.removesuffix(" (deleted)")
                found.append(Process(int(folder.name), role, program, _start_ticks(folder)))
    return found


def main_process(instance: Instance, role: str) -> Process | None:
    return next((process for process in find(instance) if process.role == role and process.is_main), None)


def stop(processes: Iterable[Process], grace_seconds: float) -> None:
    """Ends them and waits until each is gone: asked first, killed after `grace_seconds`."""
    left = list(processes)
    send(left, signal.SIGTERM if grace_seconds > 0 else signal.SIGKILL)
    deadline = time.monotonic() + grace_seconds
    while left := [process for process in left if _is_alive(process)]:
        if time.monotonic() > deadline:
            send(left, signal.SIGKILL)
        if time.monotonic() > deadline + 20:
            names = ", ".join(f"{process.program} (pid {process.pid})" for process in left)
            raise StartError(f"these processes do not end although killed: {names}")
        time.sleep(0.02)


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            if _is_alive(process):
                os.kill(process.pid, number)


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    what: str,
    *,
    instance: Instance,
    roles: Sequence[str] = (),
) -> None:
    """Polls until `condition` holds. StartError if one of `roles` dies meanwhile or time runs out, with its log."""
    deadline = time.monotonic() + seconds
    while not condition():
        dead = _missing(instance, roles)
        late = time.monotonic() > deadline
        if dead or late:
            reason = f"{', '.join(dead)} ended" if dead else f"not within {seconds:.0f} s"
            logs = "".join(
                f"\n  the end of {instance.log(role)}:\n{last_lines(instance.log(role))}" for role in dead or roles
            )
            raise StartError(f"waiting for {what}: {reason}{logs}")
        time.sleep(0.05)


def _missing(instance: Instance, roles: Sequence[str]) -> list[str]:
    running = {process.role for process in find(instance) if process.is_main}
    missing = [role for role in roles if role not in running]
    if not missing:
        return []
    # A process has no environment for an instant while it becomes another program; it has one soon after.
    time.sleep(0.1)
    running = {process.role for process in find(instance) if process.is_main}
    return [role for role in missing if role not in running]


def _is_alive(process: Process) -> bool:
    folder = Path("/proc") / str(process.pid)
    try:
        # An empty environment is a zombie's: its resources are gone, only the parent's look at it is missing.
        return _start_ticks(folder) == process.start and bool((folder / "environ").read_bytes())
    except OSError:
        return False


def _start_ticks(folder: Path) -> int:
    # The program's name, in parentheses, may itself hold blanks; the start time is the 20th field after it.
    return int((folder / "stat").read_text().rpartition(")")[2].split()[19])
