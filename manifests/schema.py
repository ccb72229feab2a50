"""A StrataModel's spec as a JSON schema for values, from the CRD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEPT = ("description", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Closed wherever the API server is. What is required is left to it: values are merged before it sees them, and any
    field may be null, which takes it out of what it is merged with."""
    made: dict[str, Any] = {name: schema[name] for name in _KEPT if name in schema}
    if "description" in made:
        made["description"] = " ".join(made["description"].split())
    made["type"] = [schema["type"], "null"]
    if "enum" in schema:
        made["enum"] = [*schema["enum"], None]
    if "properties" in schema:
        made["additionalProperties"] = False
        made["properties"] = {name: json_schema(inner) for name, inner in schema["properties"].items()}
    elif isinstance(schema.get("additionalProperties"), Mapping):
        made["additionalProperties"] = json_schema(schema["additionalProperties"])
    if "items" in schema:
        made["items"] = json_schema(schema["items"])
    return made
