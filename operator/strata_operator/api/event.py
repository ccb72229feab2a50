"""An event: one thing that a person should know of an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Event:
    """``reason`` is CamelCase, ``message`` is words for people."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
