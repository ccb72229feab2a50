"""How far a long step has come: a bar on a terminal, else a log line every tenth of the way."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, NoReturn

from strata.plan.memory import format_bytes

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger(__name__)


class Progress:
    """Call it with the phase and how much of it is done, as often as that changes: bytes of the phases "convert" and
    "load", tokens of any other. ``on_terminal`` None: look at stderr."""

    def __init__(self, *, on_terminal: bool | None = None) -> None:
        self._on_terminal = sys.stderr.isatty() if on_terminal is None else on_terminal
        self._phase: str | None = None
        self._tenth = 0
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self.close()
            self._phase, self._tenth = phase, -1
        if self._on_terminal:
            self._draw(phase, done, total)
        elif total and (tenth := 10 * done // total) > self._tenth:
            self._tenth = tenth
            logger.info(
                "%s: %d %% of %s", phase, 10 * tenth, format_bytes(total) if _in_bytes(phase) else f"{total} tokens"
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the bar; what is printed next starts on a line of its own."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _draw(self, phase: str, done: int, total: int) -> None:
        from tqdm import tqdm

        bar = self._bar
        if bar is None:
            unit = "B" if _in_bytes(phase) else " tokens"
            bar = self._bar = tqdm(desc=phase, total=total or None, unit=unit, unit_scale=True, dynamic_ncols=True)
        bar.total = total or None
        bar.update(done - bar.n)


def _in_bytes(phase: str) -> bool:
    return phase in ("wait", "download", "convert", "verify", "load")
