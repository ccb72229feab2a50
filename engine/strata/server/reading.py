"""How the text of an answer is read: into reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strata.server.output.deltas import Call, Delta, Parser


@dataclass(frozen=True, slots=True)
class Reading:
    """For all choices of a request.

    marks: special tokens that the text must show. is_parallel: one answer may make several calls. new_call_id: names a
    call in the way of the model's family.
    """

    new_parser: Callable[[], Parser]
    new_call_id: Callable[[], str]
    marks: frozenset[str] = frozenset()
    is_parallel: bool = True


class Reader:
    """For one choice."""

    def __init__(self, reading: Reading) -> None:
        self._parser = reading.new_parser()
        self._is_parallel = reading.is_parallel
        self._has_called = False
        self.is_over = False  # a second call has begun that the request does not want

    def feed(self, text: str, *, is_last: bool) -> tuple[Delta, ...]:
        """What the next piece of text says; with ``is_last`` also what was held back."""
        deltas = self._parser.feed(text) if text else []
        if is_last:
            deltas += self._parser.end()
        for position, delta in enumerate(deltas):
            if isinstance(delta, Call):
                self.is_over = self._has_called and not self._is_parallel
                self._has_called = True
                if self.is_over:
                    return tuple(deltas[:position])
        return tuple(deltas)
