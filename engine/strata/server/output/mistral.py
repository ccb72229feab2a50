"""Mistral: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``; newer ones ``[TOOL_CALLS]name[ARGS]{...}``."""

from __future__ import annotations

import re
from typing import ClassVar

from strata.server.output.json_calls import JsonCalls

MARK, ID_MARK, ARGUMENTS_MARK = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{)")
_LONGEST_HEAD = 200  # characters of a name, an id and their marks


class Mistral(JsonCalls):
    """Reads both spellings."""

    marks: ClassVar[tuple[str, ...]] = (MARK, ID_MARK, ARGUMENTS_MARK)

    def _content(self) -> bool:
        text, mark = self._until(MARK)
        self._say(text)
        if mark is None:
            return False
        self._state = self._opened
        return True

    def _opened(self) -> bool:
        """Behind the mark: a list of calls, or a name."""
        text = self._text.lstrip()
        if text.startswith("["):
            lead, self._text = self._text[: -len(text)] + "[", text[1:]
            return self._begin_call(MARK + lead)
        head = self._text[:_LONGEST_HEAD]
        if "{" not in head and len(head) < _LONGEST_HEAD and not self._ended:
            return False
        match = _NAMED.match(head)
        if match is None:
            self._say(MARK)
            self._state = self._content
            return True
        self._text = self._text[match.end() :]
        return self._begin_arguments(match[1], then=self._content)

    def _after_call_object(self) -> bool:
        text = self._text.lstrip()
        if not text and not self._ended:
            return False
        if text.startswith(","):
            self._text = text[1:]
            return self._begin_call(",")
        self._text = text.removeprefix("]")
        self._state = self._content
        return True
