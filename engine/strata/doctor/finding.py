"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "OK"
    WARN = "WARN"  # works, but slower or less than it could
    FAIL = "FAIL"  # does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and unless all is well or the message says it what to do."""

    topic: str
    level: Level
    message: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert self.advice or self.level is not Level.WARN, f"{self.topic}: a warning needs advice"


def ok(topic: str, message: str) -> Finding:
    """All is well."""
    return Finding(topic, Level.OK, message)


def warn(topic: str, message: str, advice: str) -> Finding:
    """It works, but could be better."""
    return Finding(topic, Level.WARN, message, advice)


def fail(topic: str, message: str, advice: str = "") -> Finding:
    """It does not work. ``advice``: empty where the message is an error's, which says what to do."""
    return Finding(topic, Level.FAIL, message, advice)


def lines(findings: Iterable[Finding]) -> list[str]:
    """For people: a line each, and what to do below it."""
    out = []
    for finding in findings:
        out.append(f"{finding.level:<4}  {finding.topic:<13}  {finding.message}")
        if finding.advice:
            out.append(f"{'':<21}-> {finding.advice}")
    return out
