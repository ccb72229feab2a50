"""Rotary frequencies of each of RoPE's scalings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strata.config import DynamicScaling, LinearScaling, Llama3Scaling, RopeConfig, YarnScaling


def inverse_frequencies(rope: RopeConfig, head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Radians a position of each pair of a head's dimensions, float32 [head_dim / 2], and the factor of cos and sin.

    ``max_positions``: of the longest sequence, which alone decides what "dynamic" scales by. (Hugging Face's own code
    scales by the longest sequence so far, which leaves the keys of earlier tokens turned by other angles.)
    """
    inv_freq = _unscaled(rope.theta, head_dim)
    match rope.scaling:
        case None:
            return inv_freq, 1.0
        case LinearScaling(factor):
            return inv_freq / factor, 1.0
        case DynamicScaling(factor, original):
            stretch = factor * max(max_positions, original) / original - (factor - 1)
            return _unscaled(rope.theta * stretch ** (head_dim / (head_dim - 2)), head_dim), 1.0
        case Llama3Scaling() as llama3:
            return _llama3(inv_freq, llama3), 1.0
        case YarnScaling() as yarn:
            return _yarn(inv_freq, rope.theta, yarn), yarn.attention_factor


def _unscaled(theta: float, head_dim: int) -> Tensor:
    return theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def _llama3(inv_freq: Tensor, scaling: Llama3Scaling) -> Tensor:
    turns = scaling.original_positions * inv_freq / (2 * math.pi)  # full turns within the original positions
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return _blend(inv_freq, kept.clamp(0, 1), scaling.factor)


def _yarn(inv_freq: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    pairs = len(inv_freq)

    def pair_with(turns: float) -> float:
        """The pair, as a fraction, whose wave turns that often within the original positions."""
        return pairs * math.log(scaling.original_positions / (turns * 2 * math.pi)) / math.log(theta)

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    stretched = (torch.arange(pairs, dtype=torch.float32) - low) / max(high - low, 0.001)
    return _blend(inv_freq, 1 - stretched.clamp(0, 1), scaling.factor)


def _blend(inv_freq: Tensor, kept: Tensor, factor: float) -> Tensor:
    """``kept`` is 1 where a frequency stays, 0 where it is divided by ``factor``."""
    return inv_freq * (kept + (1 - kept) / factor)
