"""SwiGLU: silu(gate) * up, in plain torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [tokens, 2 * intermediate], gate first -> silu(gate) * up [tokens, intermediate]."""
    gate, up = gate_up.view(gate_up.shape[0], 2, -1).unbind(1)
    return functional.silu(gate).mul_(up)
