"""What is compiled of linear attention: ``test_compile``."""

from __future__ import annotations

import torch

from strata.config.engine import MAX_DRAFT
from strata.kernels.attention.batch import Drafted, PagedBatch
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.delta_rule.triton import prepare
from strata.kernels.matrix import Norm
from tests.kernels.compilation import Case


def _step(seqs: int, max_query: int, *, drafts: bool = False) -> None:
    """Qwen3-Next's heads."""
    tokens, heads = seqs * max_query, torch.empty(32)
    net = DeltaNet(16, 32, 128, 128, torch.empty(8192, 4), heads, heads, Norm(torch.empty(128), 1e-6))
    index, each = torch.empty(tokens, dtype=torch.int64), torch.empty(seqs, dtype=torch.int32)
    starts = torch.empty(seqs + 1, dtype=torch.int32)
    drafted = Drafted(each, each) if drafts else None
    batch = PagedBatch(index, index, each[:, None], each, starts, max_query, each, drafted)
    ring = 4 + (2 * MAX_DRAFT if drafts else 0)
    state = DeltaState(
        torch.empty(3, ring, 8192, dtype=torch.bfloat16),
        torch.empty(3, 32, 128, 128),
        torch.empty(3, ring, 64) if drafts else None,
    )
    projected = torch.empty(tokens, 8192 + 32 * 128, dtype=torch.bfloat16)
    prepare(net)(projected, torch.empty(tokens, 64), state, batch)


CASES = [
    Case("delta rule, decode and chunks", lambda: _step(2, 96)),
    Case("delta rule, decode", lambda: _step(1, 1)),
    Case("delta rule, right drafts beside chunks", lambda: _step(2, 96, drafts=True)),
    Case("delta rule, drafts", lambda: _step(1, 8, drafts=True)),
]
