"""How far reading or writing a model's files has come."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

Progress = Callable[[int, int], None]  # bytes done, bytes in all
# The same with the phase before it: "wait" (for another process), "download", "convert", "write", "verify", "load",
# "prepare"; or "capture" and "warm up", which count tokens.
Phases = Callable[[str, int, int], None]


def silent(phase: str, done: int, total: int) -> None:
    """Phases that nobody watches."""


def phase(name: str, phases: Phases) -> Progress:
    """The progress of one phase."""
    return lambda done, total: phases(name, done, total)


def counter(total: int, progress: Progress | None, *, done: int = 0) -> Callable[[int], None]:
    """To be called with the bytes of each further piece, by any thread; ``progress`` gets their sum and ``total``, one
    call after another. done: bytes that were there before."""
    lock = Lock()

    def add(num_bytes: int) -> None:
        nonlocal done
        with lock:
            done += num_bytes
            if progress is not None:
                progress(done, total)

    return add
