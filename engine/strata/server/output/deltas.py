"""What a parser makes of a text: new pieces of reasoning, of the answer, and of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# The tools of a request: name to the JSON schema of the arguments.
Tools = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the last call's arguments: JSON, as the model writes it."""

    text: str


Delta = Content | Reasoning | Call | Arguments


class Parser(Protocol):
    """Reads one answer. However its text is cut into pieces, the deltas tell the same."""

    def feed(self, text: str) -> list[Delta]:
        """Add text; gives what is certain now."""

    def end(self) -> list[Delta]:
        """What was held back, now that no more text comes. What began as a call and is none is content."""
