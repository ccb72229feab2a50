"""buildah as a function: its environment, its errors, its steps as progress lines."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "images"  # logs and the build context


class BuildError(Exception):
    """An image could not be built or pushed; the message ends with the failed command's own words."""


def say(text: str) -> None:
    """One progress line, shown at once even through a pipe."""
    print(f"· {text}", flush=True)


@contextmanager
def patient(title: Callable[[], str], seconds: float = 20) -> Iterator[None]:
    """While the body runs: every so often a line with ``title()`` and the time, so that a wait does not look dead."""
    started, over = time.monotonic(), threading.Event()

    def remind() -> None:
        while not over.wait(seconds):
            say(f"  {title()} ({time.monotonic() - started:.0f} s so far)")

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def buildah(*arguments: str | Path, check: bool = True) -> str:
    """Standard output of a buildah command. Raises BuildError with its standard error."""
    command = ["buildah", *map(str, arguments)]
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError("buildah is not installed: apt-get install buildah") from error
    if check and done.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")
    return done.stdout.strip()


def environment() -> dict[str, str]:
    """chroot isolation: needs neither a container runtime nor namespaces, so that it also works inside a container."""
    return {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": storage_driver(), **os.environ}


@functools.cache
def storage_driver() -> str:
    """overlay, or vfs (slow, but works anywhere) where overlay cannot be mounted, as in most containers."""
    env = {**os.environ, "STORAGE_DRIVER": "overlay"}
    return (
        "vfs"
        if subprocess.run(["buildah", "info"], env=env, capture_output=True, check=False).returncode
        else "overlay"
    )


def exists(image: str) -> bool:
    """Whether the local storage has the image."""
    return bool(buildah("images", "--quiet", image, check=False))


def inside(image: str, script: str) -> str:
    """What a Python script prints that runs as root in a container of an image of the local storage."""
    container = buildah("from", "--pull-never", image)
    try:
        return buildah("run", "--user", "root", container, "--", "python3", "-c", script)
    finally:
        buildah("rm", container, check=False)


def logged(command: list[str], log: Path) -> None:
    """Run a command with its output in ``log``; say which of buildah's steps took long, as they end.

    Raises BuildError with the log's last lines.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    step, since = "", time.monotonic()
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with (
        log.open("w") as file,
        subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=pipe, stderr=both, text=True) as process,
        patient(lambda: f"{log.stem}: {step or 'starting'}"),
    ):
        for line in process.stdout or ():
            file.write(line)
            file.flush()
            named = re.match(r"(?:\[\d+/\d+\] )?STEP (\d+)/(\d+): (.*)", line)
            if named or line.startswith("COMMIT"):
                seconds = time.monotonic() - since
                if step and seconds >= 3:
                    say(f"  {log.stem}: {step}: {seconds:.0f} s")
                step, since = (summary(*named.groups()) if named else "commit"), time.monotonic()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise BuildError(f"`{' '.join(command[:2])} ...` ended with {process.returncode}; the end of {log}:\n{tail}")


def summary(number: str, of: str, instruction: str) -> str:
    """A step in a few words: its mounts and options say little to who waits for it."""
    words = [word for word in instruction.split() if not word.startswith(("--", "${"))]
    return f"step {number}/{of} {' '.join(words)[:70]}"
