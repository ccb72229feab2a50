"""gpt-oss' SwiGLU, clamped, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

ALPHA = 1.702  # x * sigmoid(1.702 x) is near GELU


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """gate_up [tokens, 2 * intermediate], gate first -> (up + 1) * gate * sigmoid(ALPHA * gate) [tokens, intermediate],
    gate cut to at most ``limit`` and up to between -limit and limit before."""
    gate, up = gate_up.view(gate_up.shape[0], 2, -1).unbind(1)
    gate = gate.clamp(max=limit)
    return torch.sigmoid(ALPHA * gate).mul_(gate).mul_(up.clamp(-limit, limit).add_(1))
