"""Ending an answer at a stop string that may arrive in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings in a growing text; the text before the first of them is all that gets out."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""  # the end of the text so far, if a stop string may begin in it

    def feed(self, text: str, *, is_last: bool = False) -> tuple[str, bool]:
        """Add new text; gives what may be shown now, and whether a stop string was met (then nothing follows).

        is_last: no more comes, so nothing is held back.
        """
        text = self._held + text
        found = [position for position in map(text.find, self._strings) if position >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = 0 if is_last else max((overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False


def overlap(text: str, string: str) -> int:
    """Length of the longest end of ``text`` that ``string`` begins with, less than all of it."""
    longest = min(len(text), len(string) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(string[:length])), 0)
