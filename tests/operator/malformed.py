"""StrataModels and StrataNodes that are wrong in one place each, generated from their CRDs' schemas."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Steps = tuple[str | int, ...]
_OTHER_TYPES: dict[str, tuple[Any, ...]] = {
    "string": (5, ["a"]),
    "integer": ("five", 1.5),
    "boolean": ("perhaps",),
    "object": ("a",),
    "array": ("a",),
}


def malformed(schema: dict[str, Any], full: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is wrong, and all of ``full`` with it: of another type, out of range, not among the choices, not matching,
    too long, unknown, missing."""
    for steps, inner in _places(schema, full, ()):
        where = ".".join(map(str, steps)) or "all of it"
        for what, value in _wrong(inner):
            yield f"{where} {what}", _with(full, steps, value)
        if "properties" in inner:
            yield f"{where} with an unknown field", _with(full, (*steps, "unheardOf"), 1)
            for name in inner.get("required", ()):
                yield f"{where} without {name}", _without(full, (*steps, name))


def _places(schema: dict[str, Any], value: Any, steps: Steps) -> Iterator[tuple[Steps, dict[str, Any]]]:
    """Every place of ``value``, with its schema."""
    yield steps, schema
    if "properties" in schema:
        for name, inner in schema["properties"].items():
            if name in value:
                yield from _places(inner, value[name], (*steps, name))
    elif schema.get("type") == "array":
        yield from _places(schema["items"], value[0], (*steps, 0))


def _wrong(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kind = schema["type"]
    for value in _OTHER_TYPES[kind]:
        yield f"is {value!r}", value
    if "enum" in schema:
        yield "is no choice", "unheard-of" if kind == "string" else 7777
    if "minimum" in schema:
        yield "is too small", schema["minimum"] - 1
    if "maximum" in schema:
        yield "is too large", schema["maximum"] + 1
    if "maxLength" in schema:
        yield "is too long", "a" * (schema["maxLength"] + 1)
    if schema.get("minLength") or "pattern" in schema:
        yield "is empty", ""
    if "pattern" in schema or ("x-kubernetes-validations" in schema and kind == "string"):
        yield "has a space and a colon", "a :b"
    if kind == "array" and schema["items"]["type"] == "object":
        yield "holds a text", ["a"]
    if schema.get("minProperties"):
        yield "is empty", {}


def _with(full: dict[str, Any], steps: Steps, value: Any) -> dict[str, Any]:
    made = {"": copy.deepcopy(full)}
    table: Any = made
    path: Steps = ("", *steps)
    for step in path[:-1]:
        table = table[step]
    table[path[-1]] = value
    return made[""]


def _without(full: dict[str, Any], steps: Steps) -> dict[str, Any]:
    made = copy.deepcopy(full)
    table: Any = made
    for step in steps[:-1]:
        table = table[step]
    del table[steps[-1]]
    return made
