"""Public ``config.json`` files, as their publishers wrote them (keys that nobody reads are left out)."""

from __future__ import annotations

import json
from pathlib import Path

from strata.config import ModelConfig, read_hf_config


def public(name: str) -> ModelConfig:
    """The shape of a public model, e.g. "qwen3-30b-a3b"."""
    return read_hf_config(json.loads(path(name).read_text()), origin=name)


def path(name: str) -> Path:
    return Path(__file__).parent / f"{name}.json"
