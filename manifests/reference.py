"""The table of fields in docs/strata-model.md, from the CRD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "strata-model.md"
CRD = ROOT / "charts" / "strata" / "crds" / "stratamodels.strata.ai.yaml"
_BEGIN = "<!-- Generated from the CRD by `make manifests`; change it there. -->\n"
_END = "<!-- End of what is generated. -->\n"

Schema = Mapping[str, Any]


def with_reference(document: str) -> str:
    """The document with the table as it should be. Raises ValueError where it has no place for one."""
    head, begin, rest = document.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT.name} lacks the lines {_BEGIN.strip()!r} and {_END.strip()!r}")
    return head + begin + table(spec()) + end + tail


def spec() -> Schema:
    """That of a StrataModel, as its definition has it."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def table(spec: Schema) -> str:
    """One row for each field of the spec, groups of fields included."""
    rows = [f"| `{path}` | {kind} | {text} |" for path, kind, text in _rows(spec, "")]
    return "\n".join(["| field | value | meaning |", "|---|---|---|", *rows, ""])


def _rows(schema: Schema, prefix: str) -> Iterator[tuple[str, str, str]]:
    required = set(schema.get("required", ()))
    for name, inner in schema["properties"].items():
        element = inner.get("items", inner)
        path = f"{prefix}{name}{'[]' if 'items' in inner else ''}"
        is_group = "properties" in element
        value = "fields" if is_group else _value(inner)
        if name in required:
            value += ", required"
        elif "default" in inner and not is_group:
            value += f"; default `{inner['default']}`"
        yield path, value, " ".join(inner["description"].split()).replace("|", "\\|")
        if is_group:
            yield from _rows(element, f"{path}.")


def _value(schema: Schema) -> str:
    """What a field may hold, in few words."""
    if "enum" in schema:
        return " ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "integer":
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is None:
            return "number"
        return f"{low} to {high}" if high is not None else f"{low} or more"
    if schema["type"] == "array":
        return f"list of {_value(schema['items'])}"
    return {"string": "text", "boolean": "true or false", "object": "table"}[schema["type"]]
