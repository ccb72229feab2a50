"""An answer that a grammar holds to the arguments of one tool."""

from __future__ import annotations

from strata.server.output.deltas import Arguments, Call, Delta


class NamedCall:
    """All of the text is the arguments of ``name``."""

    def __init__(self, name: str) -> None:
        self._begun: list[Delta] = [Call(name)]

    def feed(self, text: str) -> list[Delta]:
        begun, self._begun = self._begun, []
        return [*begun, Arguments(text)] if text else begun

    def end(self) -> list[Delta]:
        return self.feed("")
