"""The keys of a ``config.json``, each checked for its type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Keys:
    """A table of the file ``origin``; null stands for a key that is missing.

    Every method raises CheckpointError naming the key when its value is of the wrong type, or missing without default.
    """

    table: Mapping[str, Any]
    origin: str

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is."""
        value = self.table.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, *, most: int = 2**31 - 1) -> int:
        """A positive integer, ``most`` at most."""
        value = self.get(key, default)
        if type(value) is not int or value <= 0:
            raise CheckpointError(f"{self.origin}: {key!r} is {value!r}; a positive integer is needed")
        if value > most:
            raise CheckpointError(f"{self.origin}: {key!r} is more than {most}, which no model has")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise CheckpointError(f"{self.origin}: {key!r} is {value!r}; a positive number is needed")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if type(value) is not bool:
            raise CheckpointError(f"{self.origin}: {key!r} is {value!r}; true or false is needed")
        return value
