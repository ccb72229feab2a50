"""Which of the chosen experts are a rank's own, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def own(ids: Tensor, index: int, count: int, nobody: int) -> Tensor:
    """ids [tokens, top_k] of all experts -> the same of those of rank ``index`` of ``count``, by the numbers that these
    have there (``plan.rank.Rank``), ``nobody`` where another rank's is chosen."""
    return torch.where(ids % count == index, ids // count, nobody)
