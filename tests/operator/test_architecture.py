"""The picture in docs/architecture.md shows the house as it is."""

from __future__ import annotations

import re
import tomllib

from tests.operator.live.harness import ROOT


def test_the_picture_shows_the_operator_s_floors_as_the_contract_has_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (floors,) = (one["layers"] for one in contracts if one.get("containers") == ["strata_operator"])
    picture = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]
    shown: list[set[str]] = []
    for number, room in re.findall(r"│   │ +(\d*) +(\w+)", picture):
        if number:
            assert int(number) == len(floors) - len(shown)
            shown.append(set())
        shown[-1].add(room)
    assert shown == [set(floor.split(" : ")) for floor in floors]
