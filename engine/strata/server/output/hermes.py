"""Hermes and Qwen 2.5 and 3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, one pair of tags a call."""

from __future__ import annotations

from typing import ClassVar

from strata.server.output.json_calls import JsonCalls

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(JsonCalls):
    """A tag that is left open is closed by the next one, or by the end."""

    marks: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def _content(self) -> bool:
        text, mark = self._until(OPEN)
        self._say(text)
        return mark is not None and self._begin_call(OPEN)

    def _after_call_object(self) -> bool:
        found = self._whole_until(CLOSE, OPEN)
        if found is None:
            return False
        text, mark = found
        self._say(text)
        self._state = self._content
        return self._begin_call(OPEN) if mark == OPEN else True
