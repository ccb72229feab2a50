"""Shapes of public models."""

from __future__ import annotations

import json

from strata.config import ModelConfig, read_hf_config
from strata.config.public import SHAPES


def public(name: str) -> ModelConfig:
    """The shape of a public model, e.g. "qwen3-30b-a3b"."""
    return read_hf_config(json.loads(SHAPES[name].read_text()), origin=name)
