"""Frozen dataclasses to JSON tables and back, field by field: ``vram_bytes`` is ``vramBytes`` there.

A field whose name in JSON is no camelCase has it in its metadata, as ``field(metadata={"json": "smClockMaxMHz"})``.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from strata_operator.api.errors import InvalidSpecError

T = TypeVar("T")


def dump(value: Any) -> Any:
    """What is None or empty is left out of a table, but not a zero or False."""
    if is_dataclass(value):
        made = {_key(field): dump(getattr(value, field.name)) for field in fields(value)}
        return {key: inner for key, inner in made.items() if inner is not None and inner not in ([], {})}
    if isinstance(value, tuple):
        return [dump(one) for one in value]
    return value


def load(cls: type[T], table: Mapping[str, Any], path: str, *, closed: bool) -> T:
    """A ``cls`` of the table. Raises InvalidSpecError naming the field: of another type, or absent without a default.

    ``closed``: a field that ``cls`` does not have is refused too; else it is passed over, as a newer writer's is.
    """
    if not isinstance(table, Mapping):
        raise InvalidSpecError(f"{path} is {table!r}; it must be a table")
    parts = _parts(cls)  # type: ignore[arg-type]
    made = {}
    for key, (name, hint, required) in parts.items():
        value = table.get(key)
        if value is not None:
            made[name] = _value(hint, value, f"{path}.{key}", closed=closed)
        elif required:
            raise InvalidSpecError(f"{path}.{key} is missing; it is required")
    if closed and (unknown := sorted(set(table) - set(parts))):
        raise InvalidSpecError(
            f"{path}.{unknown[0]} is not known here; known are {', '.join(sorted(parts))}. "
            "Remove it, or bring the programs to the CRD's version"
        )
    return cls(**made)


def load_parts(cls: type[T], table: Mapping[str, Any], path: str) -> T:
    """As ``load`` where every field has a default, here and in the tables within: one that cannot be read does not take
    the others along."""
    made = {}
    for key, (name, hint, _) in _parts(cls).items():  # type: ignore[arg-type]
        value = table.get(key)
        if value is None:
            continue
        if isinstance(value, Mapping) and _has_defaults(hint):
            made[name] = load_parts(hint, value, f"{path}.{key}")
            continue
        with suppress(InvalidSpecError):
            made[name] = _value(hint, value, f"{path}.{key}", closed=False)
    return cls(**made)


def _has_defaults(hint: Any) -> bool:
    """Whether it is a dataclass of which nothing has to be given."""
    return is_dataclass(hint) and not any(required for _, _, required in _parts(cast("type", hint)).values())


def _value(hint: Any, value: Any, path: str, *, closed: bool) -> Any:
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InvalidSpecError(f"{path} is {value!r}; it must be a list")
        return tuple(_value(get_args(hint)[0], one, f"{path}[{n}]", closed=closed) for n, one in enumerate(value))
    if is_dataclass(hint):
        return load(hint, value, path, closed=closed)  # type: ignore[arg-type]
    if type(value) is not hint:
        raise InvalidSpecError(f"{path} is {value!r}; it must be of type {hint.__name__}")
    return value


@cache
def _parts(cls: type) -> dict[str, tuple[str, Any, bool]]:
    """By the key in JSON: the field's name, its type without a None, and whether it must be given."""
    hints = get_type_hints(cls)
    return {
        _key(field): (
            field.name,
            _without_none(hints[field.name]),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(cls)
    }


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    return hint


def _key(field: Field[Any]) -> str:
    if "json" in field.metadata:
        return str(field.metadata["json"])
    first, *rest = field.name.split("_")
    return first + "".join(part.capitalize() for part in rest)
