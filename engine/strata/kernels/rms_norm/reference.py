"""Root-mean-square normalisation, in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NormFn = Callable[[Tensor], Tensor]  # [tokens, ..., width] -> the same


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [tokens, ..., width], weight [..., width] -> weight * x / sqrt(mean(x^2) + eps); the mean of each row of width
    is taken in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def prepare(weight: Tensor, eps: float, dtype: torch.dtype) -> NormFn:
    """The norm with one weight, as a function of the activations (in ``dtype``)."""
    weight = weight.to(dtype)
    return lambda x: rms_norm(x, weight, eps)
