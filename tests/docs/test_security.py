"""docs/security.md names tests that exist, and nothing in the engine or the operator runs what it reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.site import ROOT

NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text("utf-8"))
# Modules that make objects or code of bytes, and calls that do.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "transformers"}
CALLS = {"eval", "exec", "compile", "torch.load", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}


def findings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and (node.module or "").partition(".")[0] in MODULES:
                yield str(node.module)
        elif (isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS) or (
            isinstance(node, ast.keyword) and node.arg == "trust_remote_code"
        ):
            yield ast.unparse(node)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_shows_it_exists(file: str, name: str) -> None:
    defined = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))) if hasattr(node, "name")}
    assert name in defined


def test_no_code_comes_from_data() -> None:
    found = {
        str(path.relative_to(ROOT)): calls
        for folder in ("engine/strata", "operator/strata_operator")
        for path in Path(ROOT / folder).rglob("*.py")
        if (calls := list(findings(path.read_text("utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from transformers import AutoModel",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "load(name, trust_remote_code=True)",
    ],
)
def test_code_from_data_would_be_found(source: str) -> None:
    assert list(findings(source))
