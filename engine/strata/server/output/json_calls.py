"""Calls written as JSON objects: ``{"name": "weather", "arguments": {"city": "Oslo"}}``.

The arguments are passed on while they arrive. So a call is told as soon as its head is read, and what the model writes
into its arguments after that is the call's, sound or not; a head that is none makes the whole object plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from strata.server.output.deltas import Arguments, Tools
from strata.server.output.machine import Machine

_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_TAIL = re.compile(r'(?:\s*,\s*"[^"\\{}]*"\s*:\s*(?:"[^"\\{}]*"|[\w.+-]+))*\s*\}')  # more fields that are no objects
_STRUCTURE = re.compile(r'["{}\[\]]|[^\w\s:,.+-]')  # outside of strings: what opens and closes, and what is not JSON
_IN_STRING = re.compile(r'["\\]')
_CLOSES = {"}": "{", "]": "["}


class JsonEnd:
    """Finds where a JSON object that arrives in pieces ends, or stops being one."""

    def __init__(self) -> None:
        self.is_complete = False
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """How much of ``text`` belongs to the object; None: all of it, and more is to come."""
        position = 0
        if self._escaped and text:
            position, self._escaped = 1, False
        while match := (_IN_STRING if self._in_string else _STRUCTURE).search(text, position):
            position, character = match.end(), match[0]
            if self._in_string:
                self._in_string = character != '"'
                if self._in_string:  # a backslash: the next character is the string's, whatever it is
                    self._escaped = position == len(text)
                    position += 1
            elif not self._open and (character != "{" or text[: match.start()].strip()):
                return match.start()
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._open.append(character)
            elif self._open.pop() != _CLOSES.get(character):
                return match.start()
            elif not self._open:
                self.is_complete = True
                return position
        return 0 if not self._open and text.strip() else None


class WholeCall(NamedTuple):
    """A call that is there as a whole."""

    name: str
    arguments: str


def read_call(text: str) -> WholeCall | None:
    """The call that a JSON object means, its fields in any order; None if it is none."""
    try:
        table = json.loads(text)
        if not isinstance(table, dict):
            return None
        name = table.get("name")
        arguments: Any = table.get("arguments", table.get("parameters"))
        if isinstance(arguments, str):  # JSON within JSON
            arguments = json.loads(arguments or "{}")
        text = json.dumps({} if arguments is None else arguments, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    # A name that is printable holds no half of a surrogate pair either.
    if not isinstance(name, str) or not name or not name.isprintable() or not text.startswith("{"):
        return None
    return WholeCall(name, text)


class JsonCalls(Machine):
    """What the formats with JSON calls share: one call, from its head to its closing brace."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._lead = ""
        self._end = JsonEnd()
        self._num_scanned = 0
        self._then: Callable[[], bool] = self._after_call_object

    def _begin_call(self, lead: str) -> bool:
        """Go on with a call that ``lead``, taken already, has announced."""
        self._lead, self._end, self._num_scanned = lead, JsonEnd(), 0
        self._state = self._head
        return True

    def _begin_arguments(self, name: str, *, then: Callable[[], bool]) -> bool:
        """Tell a call, and pass its arguments on; ``then`` is the state behind them."""
        self._call(name)
        self._end, self._then = JsonEnd(), then
        self._state = self._arguments
        return True

    def _is_call(self, name: str) -> bool:
        """Whether an object with this name is a call. Where a mark says so, the model may also name unknown tools."""
        return name.isprintable()

    def _head(self) -> bool:
        match = _HEAD.match(self._text)
        if match is not None and self._is_call(match[1]):
            self._text = self._text[match.end() :]
            return self._begin_arguments(match[1], then=self._closing)
        # Fields in another order, or no call: the whole object will tell.
        length = self._end.feed(self._text[self._num_scanned :])
        if length is None and not self._ended:
            self._num_scanned = len(self._text)
            return False
        end = len(self._text) if length is None else self._num_scanned + length
        whole, self._text = self._text[:end], self._text[end:]
        call = read_call(whole) if self._end.is_complete else None
        if call is None or not self._is_call(call.name):
            self._say(self._lead + whole)
            self._state = self._content
            return True
        self._call(call.name)
        self._emit(Arguments(call.arguments))
        self._state = self._after_call_object
        return True

    def _arguments(self) -> bool:
        if not self._text:
            return False
        length = self._end.feed(self._text)
        part = self._text[:length]
        self._text = self._text[len(part) :]
        if part:
            self._emit(Arguments(part))
        if length is None:
            return False
        self._state = self._then
        return True

    def _closing(self) -> bool:
        """The rest of the object, behind its arguments."""
        rest = self._text.lstrip()
        may_close = rest[:1] in ("", ",", "}")
        if may_close and "}" not in rest and not self._ended:
            return False
        match = _TAIL.match(self._text)
        if match is not None:
            self._text = self._text[match.end() :]
        self._state = self._after_call_object
        return True

    def _after_call_object(self) -> bool:
        """The state behind a call."""
        raise NotImplementedError
