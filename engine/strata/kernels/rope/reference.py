"""Rotary position embedding of the first and second half of each head ("rotate half"), in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [tokens, heads, head_dim] in place; cos and sin [tokens, 1, head_dim] as ``rope_table`` makes them.

    (a, b) of a head's two halves becomes (a cos - b sin, b cos + a sin). ``sin`` carries the minus in its first half,
    so that one roll by half a head gives both partners.
    """
    partner = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, partner, sin, out=x)


def rope_table(inv_freq: Tensor, num_positions: int, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin [num_positions, 1, head_dim] for inv_freq float32 [head_dim / 2], times ``scale``."""
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32, device=inv_freq.device), inv_freq)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], -1)[:, None].to(dtype), torch.cat([-sin, sin], -1)[:, None].to(dtype)
