"""Reading a JSON table field by field: each with its type, and none left over unread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from strata_operator.api.errors import InvalidSpecError

T = TypeVar("T")
_WORDS = {str: "a string", int: "a whole number", dict: "a table", list: "a list"}


class Fields:
    """One table of the spec. Every ``get`` marks its field as known; ``close`` refuses what nobody asked for.

    The API server has checked the object against the CRD already. This guards the seam where CRD and operator are of
    different versions: a field that the operator does not know is refused, never dropped in silence.
    """

    def __init__(self, table: Mapping[str, Any], path: str) -> None:
        self._table = table
        self._path = path
        self._known: set[str] = set()
        self._inner: list[Fields] = []

    def get(self, key: str, kind: type[T], default: T | None = None) -> T | None:
        """The field's value, ``default`` where it is absent or null. Raises InvalidSpecError for another type."""
        self._known.add(key)
        value = self._table.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidSpecError(f"{self._path}.{key} is {value!r}; it must be {_WORDS[kind]}")
        return value

    def has(self, key: str) -> bool:
        """Whether the field is given, and not null."""
        return self._table.get(key) is not None

    def need(self, key: str, kind: type[T]) -> T:
        """The field's value. Raises InvalidSpecError where it is absent or of another type."""
        value = self.get(key, kind)
        if value is None:
            raise InvalidSpecError(f"{self._path}.{key} is missing; it is required")
        return value

    def choice(self, key: str, allowed: Sequence[T], default: T | None = None) -> T:
        """The field's value, which must be one of ``allowed``."""
        value = self.get(key, type(allowed[0]), default)
        if value is None or value not in allowed:
            raise InvalidSpecError(f"{self._path}.{key} is {value!r}; allowed are {', '.join(map(str, allowed))}")
        return value

    def choice_or_none(self, key: str, allowed: Sequence[T]) -> T | None:
        """As ``choice``; None where the field is absent."""
        return None if self.get(key, type(allowed[0])) is None else self.choice(key, allowed)

    def flag(self, key: str) -> bool | None:
        """True, false, or None where it is absent."""
        self._known.add(key)
        value = self._table.get(key)
        if value is not None and not isinstance(value, bool):
            raise InvalidSpecError(f"{self._path}.{key} is {value!r}; it must be true or false")
        return value

    def between(self, low: int, high: int, key: str) -> int | None:
        """A whole number of that range, both ends included; None where it is absent."""
        value = self.get(key, int)
        if value is not None and not low <= value <= high:
            raise InvalidSpecError(f"{self._path}.{key} is {value}; allowed are {low} to {high}")
        return value

    def decimal(self, key: str, low: float, high: float) -> str | None:
        """A decimal number of that range, as the text that it is; None where it is absent."""
        text = self.get(key, str)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]+([.][0-9]+)?", text) or not low <= float(text) <= high:
            raise InvalidSpecError(f"{self._path}.{key} is {text!r}; allowed are decimals from '{low}' to '{high}'")
        return text

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where it is absent."""
        values = self.get(key, list) or []
        for value in values:
            if not isinstance(value, str):
                raise InvalidSpecError(f"{self._path}.{key} holds {value!r}; it must hold strings only")
        return tuple(values)

    def table(self, key: str) -> Fields:
        """The table under ``key``; empty where it is absent."""
        inner = Fields(self.get(key, dict) or {}, f"{self._path}.{key}")
        self._inner.append(inner)
        return inner

    def table_or_none(self, key: str) -> Fields | None:
        """As ``table``; None where it is absent."""
        return None if self.get(key, dict) is None else self.table(key)

    def tables(self, key: str) -> tuple[Fields, ...]:
        """The tables of a list; empty where it is absent."""
        made = []
        for number, value in enumerate(self.get(key, list) or []):
            path = f"{self._path}.{key}[{number}]"
            if not isinstance(value, Mapping):
                raise InvalidSpecError(f"{path} is {value!r}; it must be a table")
            made.append(Fields(value, path))
        self._inner += made
        return tuple(made)

    def texts_by_name(self, key: str) -> dict[str, str]:
        """A table of strings, such as labels; empty where it is absent."""
        table = self.get(key, dict) or {}
        for name, value in table.items():
            if not isinstance(value, str):
                raise InvalidSpecError(f"{self._path}.{key}.{name} is {value!r}; it must be a string")
        return dict(table)

    def close(self) -> None:
        """Refuse fields that were never asked for, here and in every table taken from here."""
        unknown = sorted(set(self._table) - self._known)
        if unknown:
            raise InvalidSpecError(
                f"{self._path}.{unknown[0]} is not known to this operator; known here are "
                f"{', '.join(sorted(self._known))}. Remove it, or upgrade the operator to the CRD's version"
            )
        for inner in self._inner:
            inner.close()
