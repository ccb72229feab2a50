"""What the comments in a chart's values.yaml say, as descriptions in its schema and as the table in its README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_BEGIN = "<!-- Generated from values.yaml by `make manifests`; change it there. -->\n"
_END = "<!-- End of what is generated. -->\n"
_WIDTH = 120

Path_ = tuple[str, ...]


def generated(chart: Path, **definitions: Any) -> dict[Path, str]:
    """README.md and values.schema.json as they should be, this with those definitions."""
    values, said = chart / "values.yaml", descriptions((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    if definitions:
        schema["definitions"] |= definitions
    for path, words in said.items():
        _described(schema, path, words)
    head, _, rest = (chart / "README.md").read_text().partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not end:
        raise ValueError(f"{chart.name}/README.md lacks the lines {_BEGIN.strip()!r} and {_END.strip()!r}")
    table = "\n".join(
        ["| key | default | meaning |", "|---|---|---|", *_rows(yaml.safe_load(values.read_text()), said)]
    )
    return {
        chart / "README.md": f"{head}{_BEGIN}{table}\n{_END}{tail}",
        chart / "values.schema.json": f"{compact(schema)}\n",
    }


def descriptions(text: str) -> dict[Path_, str]:
    """The comment right above each key, by the key's path."""
    found: dict[Path_, str] = {}
    comment: list[str] = []
    open_keys: list[tuple[int, str]] = []
    for line in text.splitlines():
        if (comment_line := re.match(r" *# ?(.*)", line)) is not None:
            comment.append(comment_line[1])
            continue
        if (key := re.match(r"( *)([A-Za-z][\w.-]*):", line)) is not None:
            open_keys = [one for one in open_keys if one[0] < len(key[1])] + [(len(key[1]), key[2])]
            if comment:
                found[tuple(name for _, name in open_keys)] = " ".join(comment)
        comment = []
    return found


def compact(value: Any, indent: int = 0, room: int = _WIDTH) -> str:
    """JSON in which whatever fits into a line is in one. ``room``: what is left of the first line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= room or not isinstance(value, dict | list) or not value:
        return line
    inner = " " * (indent + 2)
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
    parts = value.values() if isinstance(value, dict) else value
    room = _WIDTH - len(inner) - 1
    lines = [
        inner + name + compact(part, indent + 2, room - len(name)) for name, part in zip(names, parts, strict=True)
    ]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(lines) + f"\n{' ' * indent}{last}"


def _described(schema: dict[str, Any], path: Path_, words: str) -> None:
    """Raises ValueError for a key that the schema does not have."""
    at = schema
    for name in path:
        if name not in at.get("properties", {}):
            raise ValueError(f"values.schema.json has no property {'.'.join(path)}")
        at = at["properties"][name]
    rest = {key: value for key, value in at.items() if key != "description"}
    at.clear()
    at.update({"description": words, **rest})


def _rows(values: Mapping[str, Any], said: Mapping[Path_, str]) -> Iterator[str]:
    for path, words in said.items():
        is_group = any(other[: len(path)] == path for other in said if len(other) > len(path))
        value: Any = values
        for name in path:
            value = value[name]
        default = "" if is_group else f"`{json.dumps(value, ensure_ascii=False)}`"
        yield f"| `{'.'.join(path)}` | {default} | {words.replace('|', chr(92) + '|')} |"
