"""Root-mean-square normalisation of bf16 rows on the CPU, in few calls.

weight * x / sqrt(mean(x^2) + eps) = (weight * sqrt(n)) * x / hypot(|x|, sqrt(n * eps)), |x| the Euclidean norm. One
row of 576 on one Zen 4 core: 7.4 us, torch's own rms_norm 14.0, the reference 16.6 (calls, not arithmetic).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strata.kernels.rms_norm.reference import NormFn


def prepare(weight: Tensor, eps: float, dtype: torch.dtype) -> NormFn:
    """As ``reference.prepare``; the result is rounded once, after the weight."""
    width = weight.shape[-1]
    scaled = weight.float() * math.sqrt(width)
    floor = torch.tensor(math.sqrt(width * eps))
    norm = torch.linalg.vector_norm

    def rms_norm(x: Tensor) -> Tensor:
        wide = x.to(torch.float32, copy=True)
        return wide.div_(norm(wide, 2, -1, True).hypot_(floor)).mul_(scaled).to(dtype)

    return rms_norm
