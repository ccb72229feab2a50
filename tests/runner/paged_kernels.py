"""Kernels for the CPU that are given whole block tables, as a card's are."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from strata.kernels.attention.batch import AttentionBatch, AttentionGroup, PagedBatch, StepBatch
from strata.kernels.layer import AttentionFn, Heads, Kernels, Rotation
from strata.kernels.operations import REFERENCE


class PagedKernels(Kernels):
    """The plain operations in float32; attention takes each sequence for itself."""

    reads_pages = True

    def __init__(self) -> None:
        super().__init__(REFERENCE, torch.float32)

    def attention(self, heads: Heads) -> AttentionFn:
        return partial(_attend, super().attention(heads), heads.window)


def _attend(
    attend: AttentionFn, window: int | None, qkv: Tensor, rotation: Rotation, cache: Tensor, batch: StepBatch
) -> Tensor:
    assert isinstance(batch, PagedBatch)
    starts = batch.starts.tolist()
    groups = []
    for i, length in enumerate(batch.lengths.tolist()):
        if starts[i] == starts[i + 1]:
            continue  # a sequence that has no new tokens in this step
        assert length > 0 or starts[i + 1] - starts[i] == 1, "a row that fills up a decode step is one row"
        blocks = batch.tables[i, : -(-length // cache.shape[1])].long()
        sizes = torch.zeros(1, dtype=torch.int64), torch.tensor([length])
        groups.append(AttentionGroup(starts[i], starts[i + 1], 1, blocks, *sizes, kv_len=length))
    gathered = AttentionBatch(batch.positions, batch.slots, batch.starts, {window: tuple(groups)})
    out = attend(qkv, rotation, cache, gathered)
    filling = [group.begin for group in groups if group.kv_len == 0]
    out[filling] = torch.nan  # nobody may read it
    return out
