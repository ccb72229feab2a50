"""Activations rounded to 8 bits, as the products with few bits a weight take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32  # columns that share a scale, as in the weights
LEVELS = 127  # largest code
# Of a step on a GPU; with more, products run on tensor cores in bf16. 24576 x 4096 in int4, one H200, 2026-11-30:
# 4 rows 40 us, 8 rows 104; on tensor cores 44 up to 16 rows.
MAX_QUANTIZED_ROWS = 4


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """x [tokens, cols] ~ codes * scales: codes int8 [tokens, cols]; scales float32 [tokens, cols / 32]; sums float32
    [tokens, cols / 32], scale times the sum of its group's codes (a weight's minimum is multiplied by it)."""

    codes: Tensor
    scales: Tensor
    sums: Tensor


def wants_quantized(tokens: int) -> bool:
    """Whether steps on a GPU pass ``QuantizedRows`` between them; bf16 [tokens, cols] otherwise."""
    return tokens <= MAX_QUANTIZED_ROWS


def empty_rows(tokens: int, cols: int, device: torch.device) -> QuantizedRows:
    """Rows for a kernel to write."""
    return QuantizedRows(
        torch.empty(tokens, cols, dtype=torch.int8, device=device),
        torch.empty(tokens, cols // GROUP, device=device),
        torch.empty(tokens, cols // GROUP, device=device),
    )


def quantize_rows(x: Tensor) -> QuantizedRows:
    """The reference: x [tokens, cols], the largest of each group becomes 127 or -127; ties are rounded away from 0."""
    tokens, cols = x.shape
    groups = x.float().view(tokens, cols // GROUP, GROUP)
    scales = groups.abs().amax(-1) / LEVELS
    scaled = groups / torch.where(scales > 0, scales, 1.0)[..., None]
    codes = torch.where(scaled >= 0, (scaled + 0.5).floor(), (scaled - 0.5).ceil())
    return QuantizedRows(codes.to(torch.int8).view(tokens, cols), scales, scales * codes.sum(-1))


def dequantize_rows(rows: QuantizedRows) -> Tensor:
    """float32 [tokens, cols]."""
    tokens, cols = rows.codes.shape
    return (rows.codes.view(tokens, -1, GROUP) * rows.scales[..., None]).view(tokens, cols)
