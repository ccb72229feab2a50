"""Qwen3-Coder: tagged parameters instead of JSON.

<tool_call>
<function=weather>
<parameter=city>
Oslo
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar

from strata.server.output.deltas import Arguments, Tools
from strata.server.output.machine import Machine

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"

_LONGEST_NAME = 200  # characters
_NAME = re.compile(rf"[^<>\s]{{1,{_LONGEST_NAME}}}")


class QwenXml(Machine):
    """Values become JSON by the type that the tool's schema gives them; a string's text is passed on as it comes."""

    marks: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._properties: dict[str, Any] = {}
        self._schema: Any = None  # of the value that is read
        self._num_parameters = 0

    def _content(self) -> bool:
        text, mark = self._until(OPEN, FUNCTION)
        self._say(text)
        if mark is None:
            return False
        self._lead = OPEN if mark == OPEN else ""
        if mark == FUNCTION:  # without the outer tag, as the model writes at times
            self._text = FUNCTION + self._text
        self._state = self._function
        return True

    def _function(self) -> bool:
        name = self._read_tag(FUNCTION)
        if name is None:
            return False
        if not name:
            lead = self._lead or FUNCTION
            self._text = self._text[len(lead) - len(self._lead) :]
            self._say(lead)
            self._state = self._content
            return True
        self._call(name)
        self._emit(Arguments("{"))
        properties = self._tools.get(name, {}).get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._num_parameters = 0
        self._state = self._parameter
        return True

    def _parameter(self) -> bool:
        """The next parameter's tag, or the end of the arguments."""
        name = self._read_tag(PARAMETER)
        if name is None:
            return False
        if not name:
            self._emit(Arguments("}"))
            self._state = self._end_function
            return True
        comma = ", " if self._num_parameters else ""
        self._emit(Arguments(f"{comma}{json.dumps(name, ensure_ascii=False)}: "))
        self._num_parameters += 1
        self._schema = self._properties.get(name, {"type": "string"})
        self._state = self._begin_value
        return True

    def _begin_value(self) -> bool:
        if not self._text and not self._ended:
            return False
        self._text = self._text.removeprefix("\n")  # a tag's line ends with it
        if _types(self._schema) == {"string"}:
            self._emit(Arguments('"'))
            self._state = self._string
        else:
            self._state = self._value
        return True

    def _string(self) -> bool:
        text, mark = self._until(END_PARAMETER)
        text = self._space + text
        body = text.removesuffix("\n")  # it may be the one before the tag
        self._space = text[len(body) :] if mark is None and not self._ended else ""
        self._emit(Arguments(json.dumps(body, ensure_ascii=False)[1:-1]))
        if mark is None and not self._ended:
            return False
        self._emit(Arguments('"'))
        self._state = self._parameter
        return True

    def _value(self) -> bool:
        found = self._whole_until(END_PARAMETER)
        if found is None:
            return False
        self._emit(Arguments(_to_json(found[0].removesuffix("\n"), _types(self._schema))))
        self._state = self._parameter
        return True

    def _end_function(self) -> bool:
        return self._skip(END_FUNCTION, then=self._end_call if self._lead else self._content)

    def _end_call(self) -> bool:
        return self._skip(CLOSE, then=self._content)

    def _skip(self, tag: str, *, then: Callable[[], bool]) -> bool:
        """Take a tag that should come now; what comes instead is content."""
        rest = self._text.lstrip()
        if tag.startswith(rest) and rest != tag and not self._ended:
            return False
        if rest.startswith(tag):
            self._text = rest[len(tag) :]
        self._state = then
        return True

    def _read_tag(self, tag: str) -> str | None:
        """Take ``<tag=NAME>`` and give the name: "" when something else comes, None while that is open."""
        rest = self._text.lstrip()
        name = _NAME.match(rest, len(tag)) if rest.startswith(tag) else None
        end = len(tag) if name is None else name.end()
        if name is not None and rest.startswith(">", end):
            self._text = rest[end + 1 :]
            return name[0]
        may_follow = tag.startswith(rest) or (end == len(rest) < len(tag) + _LONGEST_NAME and rest.startswith(tag))
        return None if may_follow and not self._ended else ""


def _types(schema: Any) -> set[str]:
    """The JSON types that a schema names at its top."""
    declared = schema.get("type") if isinstance(schema, dict) else None
    return {declared} if isinstance(declared, str) else set(declared) if isinstance(declared, list) else set()


def _to_json(text: str, types: set[str]) -> str:
    """A value that is JSON as it is, in Python's spelling of true, false and null too; any other is a string."""
    for spelling in (text.strip(), text.strip().lower()):
        try:
            value = json.loads(spelling, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if "string" not in types or value is None:
            return spelling
    return json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
