"""Reading a text with a parser, in whatever pieces, and telling what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.server.output.deltas import Arguments, Call, Content, Parser, Reasoning

TOOLS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {"type": "object", "properties": {}},
}


@dataclass
class Told:
    """Everything that the deltas say, joined: the answer, the reasoning, and each call with its arguments."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def read(parser: Parser, pieces: Sequence[str]) -> Told:
    """Feed the pieces and end."""
    told = Told()
    for delta in [delta for piece in pieces for delta in parser.feed(piece)] + parser.end():
        match delta:
            case Content(text):
                told.content += text
            case Reasoning(text):
                told.reasoning += text
            case Call(name):
                told.calls.append((name, ""))
            case Arguments(text):
                name, arguments = told.calls[-1]
                told.calls[-1] = (name, arguments + text)
    return told
