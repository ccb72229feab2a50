"""Llama 3.x: the answer is ``{"name": ..., "parameters": {...}}``, bare or behind ``<|python_tag|>``; more of them
follow behind a semicolon."""

from __future__ import annotations

import re
from typing import ClassVar

from strata.server.output.deltas import Tools
from strata.server.output.json_calls import JsonCalls

TAG = "<|python_tag|>"

_FIRST_KEY = re.compile(r'\s*\{\s*"([^"\\]*)"')
_CALL_KEYS = ("type", "name", "parameters", "arguments")


class Llama(JsonCalls):
    """Only an object that names a tool of the request is a call: no mark tells it from an answer in JSON."""

    marks: ClassVar[tuple[str, ...]] = (TAG,)

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._state = self._start

    def _is_call(self, name: str) -> bool:
        return name in self._tools

    def _start(self) -> bool:
        """Where a bare object may begin: at the start of the answer, and behind a call."""
        text = self._text.lstrip()
        if not text and not self._ended:
            return False
        self._state = self._content
        return self._begin_call("") if text.startswith("{") else True

    def _head(self) -> bool:
        key = _FIRST_KEY.match(self._text)
        if key is not None and key[1] not in _CALL_KEYS:  # an answer in JSON is not held back to its end
            self._say(self._lead)
            self._state = self._content
            return True
        return super()._head()

    def _content(self) -> bool:
        text, mark = self._until(TAG)
        self._say(text)
        return mark is not None and self._begin_call(TAG)

    def _after_call_object(self) -> bool:
        text = self._text.lstrip()
        if not text and not self._ended:
            return False
        if text.startswith((";", ",")):
            rest = text[1:].lstrip()
            if not rest and not self._ended:
                return False
            if rest.startswith(("{", "<")):
                self._text = rest
        self._state = self._start
        return True
