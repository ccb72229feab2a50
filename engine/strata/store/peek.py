"""The shape of a model without its weights: a ``config.json`` is enough."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.config import ModelConfig, read_hf_config
from strata.store.files import read_json
from strata.store.sources import open_source, source_path


def peek(source: str) -> ModelConfig:
    """The shape of what the user names: a ``config.json`` or a directory with one (weights need not be there; a store
    is such a directory), a .gguf file of which the header is read, or ``builtin://NAME``.

    Raises CheckpointError when it is none of these or is damaged, UnsupportedModelError when the header of a GGUF file
    names something that Strata does not read.
    """
    path = source_path(source)
    table, origin = _table(path)
    return read_hf_config(table, origin=origin)


def _table(path: Path) -> tuple[Mapping[str, Any], str]:
    config = path if path.suffix == ".json" else path / "config.json"
    if config.is_file():
        return read_json(config), str(config)
    opened = open_source(path)
    return opened.config, opened.origin
