"""How far a long step has come: a bar on a terminal, else a log line every tenth of the way."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger(__name__)

IN_BYTES = ("wait", "download", "convert", "write", "verify", "load", "prepare")  # phases; any other counts tokens


class ProgressBar:
    """Call it with the phase and how much of it is done, as often as that changes: bytes of the phases ``IN_BYTES``,
    tokens of any other; shows that, the rate and the time left. ``on_terminal`` None: look at stderr. ``clock``: gives
    seconds."""

    def __init__(self, *, on_terminal: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._on_terminal = sys.stderr.isatty() if on_terminal is None else on_terminal
        self._clock = clock
        self._phase: str | None = None
        self._began = (0.0, 0)  # the time of a phase's first call, and what was done by then
        self._tenth = 0
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self.close()
            self._phase, self._tenth = phase, -1
            self._began = self._clock(), done
        if self._on_terminal:
            self._draw(phase, done, total)
        elif total and (tenth := 10 * done // total) > self._tenth:
            self._tenth = tenth
            size = format_bytes(total) if phase in IN_BYTES else f"{total} tokens"
            logger.info("%s: %d %% of %s%s", phase, 10 * tenth, size, self._pace(phase, done, total))

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the bar; what is printed next starts on a line of its own."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _pace(self, phase: str, done: int, total: int) -> str:
        """The rate since the phase began, and the time that is left at that rate."""
        seconds, fresh = self._clock() - self._began[0], done - self._began[1]
        if seconds <= 0 or fresh <= 0:
            return ""
        rate = fresh / seconds
        shown = f"{format_bytes(int(rate))}/s" if phase in IN_BYTES else f"{rate:.1f} tokens/s"
        left = f", {_duration((total - done) / rate)} left" if done < total else ""
        return f", {shown}{left}"

    def _draw(self, phase: str, done: int, total: int) -> None:
        from tqdm import tqdm

        bar = self._bar
        if bar is None:
            unit = "B" if phase in IN_BYTES else " tokens"
            bar = self._bar = tqdm(
                desc=phase, initial=done, total=total or None, unit=unit, unit_scale=True, dynamic_ncols=True
            )
        bar.total = total or None
        bar.update(done - bar.n)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
