"""Reasoning between ``<think>`` and ``</think>``, before the answer."""

from __future__ import annotations

from typing import ClassVar

from strata.server.output.deltas import Content, Delta, Parser, Reasoning
from strata.server.output.machine import Machine

OPEN, CLOSE = "<think>", "</think>"


class Thinking(Machine):
    """Tells reasoning, and hands the text behind it to ``inner``. ``is_open``: the prompt has opened the tag already.

    A tag counts at the start alone: in an answer it is text. White space inside and behind the tags is dropped.
    """

    marks: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def __init__(self, inner: Parser, *, is_open: bool) -> None:
        super().__init__({})
        self._inner = inner
        self._is_open = is_open
        self._thought = False  # something, already
        self._state = self._start

    def end(self) -> list[Delta]:
        self._ended = True
        return self._run() + self._inner.end()

    def _start(self) -> bool:
        text = self._text.lstrip()
        if text.startswith(OPEN):  # some models repeat the tag that the prompt has opened
            self._text, self._state = text[len(OPEN) :], self._reasoning
            return True
        if OPEN.startswith(text) and not self._ended:
            return False
        self._state = self._reasoning if self._is_open else self._answer
        return True

    def _reasoning(self) -> bool:
        text, mark = self._until(CLOSE)
        self._think(text)
        if mark is None:
            return False
        self._state = self._gap
        return True

    def _think(self, text: str) -> None:
        text = self._space + text
        if not self._thought:
            text = text.lstrip()
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._thought = True
            self._emit(Reasoning(body))

    def _gap(self) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = self._answer
        return True

    def _answer(self) -> bool:
        text, self._text = self._text, ""
        self._deltas += self._inner.feed(text)
        return False


class Plain:
    """Every text is the answer."""

    def feed(self, text: str) -> list[Delta]:
        return [Content(text)] if text else []

    def end(self) -> list[Delta]:
        return []
