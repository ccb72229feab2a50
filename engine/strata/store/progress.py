"""How far reading or writing a model's files has come."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    """To be called with the bytes of each further piece; ``progress`` gets their sum and ``total``."""
    done = 0

    def add(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    return add
