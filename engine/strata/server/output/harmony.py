"""gpt-oss's harmony format: messages on channels, some of them addressed to a function.

    <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>

The prompt ends with ``<|start|>assistant``; the tokens that end the sequence are not part of the text.
"""

from __future__ import annotations

import re
from typing import ClassVar

from strata.server.output.deltas import Arguments, Content, Reasoning, Tools
from strata.server.output.machine import Machine

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")

_Kind = type[Content] | type[Reasoning] | type[Arguments]

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION = re.compile(r"\bto=functions\.([\w.-]+)")
_LONGEST_HEADER = 300  # characters; a longer one is none


class Harmony(Machine):
    """Reasoning, answer and calls at once. Without tools, what is addressed to a function is content."""

    marks: ClassVar[tuple[str, ...]] = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._state = self._header
        self._kind: _Kind = Content
        self._before = ""
        self._told: set[_Kind] = set()

    def _header(self) -> bool:
        """From the end of a message, or the prompt's, to the next message's text."""
        longest = _LONGEST_HEADER + len(MESSAGE)
        header, message, _ = self._text[:longest].partition(MESSAGE)
        if not message and len(header) < longest and not self._ended:
            return False
        channel, function = _CHANNEL.search(header), _FUNCTION.search(header)
        if not message or channel is None:
            if self._ended and (START in header or CHANNEL in header):
                self._text = ""  # cut off before it said anything
            self._begin(Content)
            return bool(self._text)
        self._text = self._text[len(header) + len(message) :]
        if function is not None and self._tools:
            self._call(function[1])
            self._begin(Arguments)
        else:
            self._begin(Reasoning if channel[1] == "analysis" else Content)
        return True

    def _begin(self, kind: _Kind) -> None:
        """Go on with a message's text; a second message of its kind stands on a line of its own."""
        self._before = "\n" if kind in self._told and kind is not Arguments else ""
        self._kind, self._state = kind, self._content

    def _content(self) -> bool:
        text, mark = self._until(*ENDS, START)
        if text:
            self._emit(self._kind(self._before + text))
            self._told.add(self._kind)
            self._before = ""
        if mark is not None:
            self._state = self._header
        return mark is not None
