"""The chart renders what it rendered before, and every key of it is documented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests import values
from manifests.charts import CHART
from tests.operator.chart import golden
from tests.operator.chart.cases import CASES
from tests.operator.chart.helm import Helm

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_every_set_of_values_renders_as_in_its_file(helm: Helm) -> None:
    wanted = golden.files(helm)
    assert set(golden.FOLDER.iterdir()) == wanted.keys(), "run `make golden`"
    stale = [path.name for path, text in wanted.items() if path.read_text() != text]
    assert stale == [], "run `make golden`, and read what it changed"


def test_a_difference_shows_what_is_new_what_is_gone_and_what_is_other() -> None:
    old = {("a.yaml", 0): "x: 1\ny: 2\n", ("gone.yaml", 0): "z: 1\n", ("same.yaml", 0): "s: 1\n"}
    new = {("a.yaml", 0): "x: 1\ny: 3\n", ("new.yaml", 0): "n: 1\n", ("same.yaml", 0): "s: 1\n"}
    assert "".join(golden.difference(old, new)) == (
        "=== a.yaml\n...\n x: 1\n-y: 2\n+y: 3\n=== without gone.yaml\n=== new.yaml\n...\n+n: 1\n"
    )


def properties(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every property, those of definitions and list items too."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from properties(inner, f"{path}.{name}")
    if "items" in schema:
        yield from properties(schema["items"], f"{path}[]")
    for name, inner in schema.get("definitions", {}).items():
        yield from properties(inner, f"definition {name}")


def test_every_property_is_described_and_every_group_closed() -> None:
    assert [path for path, one in properties(SCHEMA) if len(one.get("description", "")) < 9] == []
    groups = [("", SCHEMA), *properties(SCHEMA)]
    assert [path for path, one in groups if "properties" in one and one.get("additionalProperties") is not False] == []


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path


def test_every_value_lies_under_a_comment_and_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    said = values.descriptions(text)
    for path in leaves(yaml.safe_load(text)):
        schema, described = SCHEMA, False
        for length, name in enumerate(path, 1):
            described = path[:length] in said
            if "properties" not in schema:
                break
            schema = schema["properties"][name]
        assert described or "properties" not in schema, path


def test_a_comment_belongs_to_the_key_below_it() -> None:
    text = "# a\n# b\nx:\n  # inner\n  y: 1\n  z: 2\n\n# nobody's\n\nw: 3\n"
    assert values.descriptions(text) == {("x",): "a b", ("x", "y"): "inner"}


def test_json_is_one_line_where_it_fits() -> None:
    table = {"short": [1, 2], "long": {"a": "x" * 100, "b": []}}
    text = values.compact(table)
    assert json.loads(text) == table
    assert text.splitlines()[1] == '  "short": [1, 2],'
    assert max(map(len, text.splitlines())) <= 120


def test_a_key_without_a_schema_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("# said\nkey: 1\n")
    (tmp_path / "values.schema.json").write_text("{}")
    with pytest.raises(ValueError, match="no property key"):
        values.generated(tmp_path)


def test_there_are_cases_for_every_value() -> None:
    """Each key of the schema is set by a case, or is one whose effect another test looks at."""
    text = (CHART / "values.yaml").read_text()
    given = {".".join(path) for case in CASES.values() for path in leaves(case)}
    elsewhere = {"image.pullPolicy", "image.repository", "engineImage.repository", "agent.prometheusRule"}
    elsewhere |= {"dashboards", *(f"dashboards.{key}" for key in ("enabled", "labels", "folder", "annotations"))}
    missing = [
        key
        for path in values.descriptions(text)
        if not any(one == (key := ".".join(path)) or one.startswith(f"{key}.") for one in given)
    ]
    assert set(missing) - elsewhere == set()
