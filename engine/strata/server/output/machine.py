"""The state machine under every parser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from strata.server.output.deltas import Call, Content, Delta, Tools
from strata.server.stop import overlap


class Machine:
    """A ``Parser`` whose state is a method that reads the beginning of what has arrived.

    A state returns False when it needs more text (or is at the end), True after any other step. At the end
    ``_ended`` is set, and a state that has text left must take it.
    """

    marks: ClassVar[tuple[str, ...]] = ()  # special tokens that the text must show

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._text = ""  # has arrived, and is not read yet
        self._ended = False
        self._state: Callable[[], bool] = self._content
        self._deltas: list[Delta] = []
        self._space = ""  # at the end of the content so far: dropped when a call follows
        self._after_call = False  # and no content since

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return self._run()

    def end(self) -> list[Delta]:
        self._ended = True
        deltas = self._run()
        if self._space:
            deltas.append(Content(self._space))
        return deltas

    def _run(self) -> list[Delta]:
        while self._state():
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def _content(self) -> bool:
        """The state of plain text."""
        raise NotImplementedError

    # --- reading

    def _until(self, *marks: str) -> tuple[str, str | None]:
        """Take the text before the first of ``marks``, and the mark. Without one: all that cannot begin one."""
        text = self._text
        position, mark = self._find(marks)
        if mark is not None:
            self._text = text[position + len(mark) :]
            return text[:position], mark
        held = 0 if self._ended else max(overlap(text, mark) for mark in marks)
        self._text = text[len(text) - held :]
        return text[: len(text) - held], None

    def _whole_until(self, *marks: str) -> tuple[str, str | None] | None:
        """The same in one piece: None until the mark is there, or the end."""
        return self._until(*marks) if self._ended or self._find(marks)[1] is not None else None

    def _find(self, marks: tuple[str, ...]) -> tuple[int, str | None]:
        found = [(position, mark) for mark in marks if (position := self._text.find(mark)) >= 0]
        return min(found, default=(-1, None))

    # --- telling

    def _emit(self, delta: Delta) -> None:
        """Tell something; pieces of one thing that come together are one."""
        last = self._deltas[-1] if self._deltas else None
        if type(last) is not type(delta) or isinstance(last, Call | None) or isinstance(delta, Call):
            self._deltas.append(delta)
        else:
            self._deltas[-1] = replace(delta, text=last.text + delta.text)

    def _say(self, text: str) -> None:
        """Tell content. White space around calls is the format's, not the answer's."""
        text = self._space + text
        if self._after_call:
            text = text.lstrip()
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._after_call = False
            self._emit(Content(body))

    def _call(self, name: str) -> None:
        self._space, self._after_call = "", True
        self._emit(Call(name))
