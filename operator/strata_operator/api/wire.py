"""Frozen dataclasses to JSON tables and back, field by field: ``vram_bytes`` is ``vramBytes`` there.

A field whose name in JSON is no camelCase has it in its metadata, as ``field(metadata={"json": "smClockMaxMHz"})``.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

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
    hints = _hints(cls)  # type: ignore[arg-type]
    made = {}
    for field in fields(cls):  # type: ignore[arg-type]
        key = _key(field)
        value = table.get(key)
        if value is not None:
            made[field.name] = _value(hints[field.name], value, f"{path}.{key}", closed=closed)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InvalidSpecError(f"{path}.{key} is missing; it is required")
    unknown = sorted(set(table) - {_key(field) for field in fields(cls)})  # type: ignore[arg-type]
    if closed and unknown:
        raise InvalidSpecError(
            f"{path}.{unknown[0]} is not known here; known are {', '.join(sorted(map(_key, fields(cls))))}. "  # type: ignore[arg-type]
            "Remove it, or bring the programs to the CRD's version"
        )
    return cls(**made)


def load_parts(cls: type[T], table: Mapping[str, Any], path: str) -> T:
    """As ``load`` where every field has a default, here and in the tables within: one that cannot be read does not take
    the others along."""
    made = {}
    for field in fields(cls):  # type: ignore[arg-type]
        key, inner = _key(field), _hints(cls)[field.name]  # type: ignore[arg-type]
        value = table.get(key)
        if isinstance(value, Mapping) and _has_defaults(inner):
            made[field.name] = load_parts(inner, value, f"{path}.{key}")
            continue
        try:
            one = load(cls, {key: value}, path, closed=False)
        except InvalidSpecError:
            continue
        made[field.name] = getattr(one, field.name)
    return cls(**made)


def _has_defaults(hint: Any) -> bool:
    """Whether it is a dataclass of which nothing has to be given."""
    return is_dataclass(hint) and not any(
        field.default is MISSING and field.default_factory is MISSING for field in fields(hint)
    )


def _value(hint: Any, value: Any, path: str, *, closed: bool) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
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
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _key(field: Field[Any]) -> str:
    if "json" in field.metadata:
        return str(field.metadata["json"])
    first, *rest = field.name.split("_")
    return first + "".join(part.capitalize() for part in rest)
