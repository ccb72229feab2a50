"""The weights that operations are prepared of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Matrix:
    """W [rows, cols] and b [rows] of x @ W.T + b; W as the parts of bit format ``kind``."""

    kind: str
    parts: Mapping[str, Tensor]
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square normalisation: weight [..., width] * x / sqrt(mean(x^2) + eps)."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Activation:
    """Of a gated MLP: silu(gate) * up, or with a ``limit`` gpt-oss' clamped one (``kernels.clamped_swiglu``)."""

    limit: float | None = None


SILU = Activation()
