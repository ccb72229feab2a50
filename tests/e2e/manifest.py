"""StrataModels for tests: the example with a name of its own and a few fields changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import yaml

from tests.e2e.install import EXAMPLE

_EXAMPLE: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())


def model(name: str, changes: Mapping[str, Any] | None = None) -> str:
    """JSON of the example model. ``changes`` maps dotted paths below spec to values; None removes a field."""
    made = copy.deepcopy(_EXAMPLE)
    made["metadata"]["name"] = name
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        table = made["spec"]
        for parent in parents:
            table = table.setdefault(parent, {})
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
    return json.dumps(made)
