"""Runs other programs, and locks shared with other processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.errors import CommandError


def run(
    args: Sequence[str | Path],
    *,
    input: str | bytes | None = None,  # noqa: A002 - the name that subprocess uses
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """What the program printed. CommandError, with what it complained about, unless it ends with 0."""
    given = input.encode() if isinstance(input, str) else input
    try:
        # No input means an empty one: nobody is there to answer a question.
        done = subprocess.run(args, input=given or b"", capture_output=True, env=env, cwd=cwd, check=False)
    except FileNotFoundError as error:
        raise CommandError(f"cannot run {args[0]}: {error.strerror}") from error
    stdout, stderr = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    if done.returncode != 0:
        said = "\n".join(f"    {line}" for line in (stderr.strip() or stdout.strip()).splitlines()[-15:])
        command = " ".join([Path(args[0]).name, *(str(arg) for arg in args[1:])])
        raise CommandError(f"`{command}` failed with status {done.returncode}:\n{said}")
    return stdout


# What we talk to is on this machine: no proxy of the environment has anything to do with it.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str) -> bool:
    """Whether a GET succeeds now."""
    try:
        with direct.open(url, timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel gives it back when the holder ends, however it ends.

    `waiting` is called once if somebody else holds it. The holder may unlink the file: whoever waited for the old
    file notices and takes the new one.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # somebody removed the folder in between
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
