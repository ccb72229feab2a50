"""The likeliest token of each row of logits, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(logits: Tensor) -> Tensor:
    """logits float32 [rows, vocab] -> int64 [rows]: the place of the largest, -1 where that is not finite (a NaN counts
    as the largest)."""
    largest, best = logits.max(-1)
    return torch.where(largest.isfinite(), best, -1)
