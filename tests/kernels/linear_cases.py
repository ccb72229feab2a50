"""What is compiled of the dense products: ``test_compile``."""

from __future__ import annotations

import torch

from strata.kernels.rms_norm.triton import norm_quantize, norm_rows
from tests.kernels.compilation import Case


def _residual(tokens: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.empty(tokens, hidden), torch.empty(hidden), 1e-6


CASES = [
    Case("norm, Qwen3-8B", lambda: norm_rows(*_residual(64, 4096)), frozenset({"norm_kernel"})),
    Case("norm, gpt-oss", lambda: norm_quantize(*_residual(1, 2880)), frozenset({"norm_kernel"})),
]
