"""What is made once for the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from images.buildah import BUILD, say

_STAMPS = BUILD.parent / "release"


def once(target: Path, inputs: str, make: Callable[[Path], object]) -> Path:
    """``target``, made by ``make(beside)`` unless it was made from the same ``inputs`` and lies there untouched.

    It appears under its name only when it is whole.
    """
    stamp = _STAMPS / target.parent.name / target.name
    if target.exists() and stamp.exists() and stamp.read_text() == _state(target, inputs):
        say(f"{target.name}: unchanged")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}")
    partial.unlink(missing_ok=True)
    try:
        make(partial)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(_state(target, inputs))
    say(f"{target.name}: {target.stat().st_size / 1e6:,.1f} MB")
    return target


def _state(target: Path, inputs: str) -> str:
    facts = target.stat()
    return f"{facts.st_size} {facts.st_mtime_ns} {inputs}\n"
