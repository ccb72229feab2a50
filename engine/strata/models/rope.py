"""Rotary frequencies of a checkpoint, by the name of its scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strata.config import RopeConfig
from strata.errors import CheckpointError, UnsupportedModelError

SUPPORTED = ("default", "linear", "llama3")


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians a position of each pair of a head's dimensions: float32 [head_dim / 2].

    Raises UnsupportedModelError for a scaling that is not known here, CheckpointError for one that lacks a number.
    """
    if rope.kind not in SUPPORTED:
        raise UnsupportedModelError(
            f"RoPE scaling {rope.kind!r} is not supported; supported are {', '.join(SUPPORTED)}: use another checkpoint"
        )
    inv_freq = rope.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    scaling = rope.scaling or {}
    if rope.kind == "linear":
        return inv_freq / _number(scaling, "factor")
    if rope.kind == "llama3":
        return _llama3(inv_freq, scaling)
    return inv_freq


def _llama3(inv_freq: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Llama 3.1's rule: long waves are stretched by ``factor``, short ones stay, those between are blended."""
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    context = _number(scaling, "original_max_position_embeddings")
    turns = context * inv_freq / (2 * math.pi)  # full turns within the original context
    blend = ((turns - low) / (high - low)).clamp(0, 1)  # 0: stretched, 1: unchanged
    return inv_freq * (blend + (1 - blend) / factor)


def _number(scaling: Mapping[str, Any], key: str) -> float:
    value = scaling.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"config.json: RoPE scaling has {key!r} = {value!r}; a positive number is needed")
    return float(value)
