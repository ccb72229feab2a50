"""Every sequence's block table, where attention reads the pages in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.runner.pack import PackedStates, Packer
from strata.scheduler.batch import Batch


class Paged:
    """A ``PagedBatch``: first its integers for ``packer``, then the batch of what that gave."""

    def __init__(self, batch: Batch, block_size: int, packer: Packer, *, drafts: bool) -> None:
        """``drafts``: whether steps may have some."""
        sequences = batch.sequences
        num_tokens = [len(sequence.token_ids) for sequence in sequences]
        self._num_seqs = len(sequences)
        self._max_query = max(num_tokens)
        width = max(-(-sequence.end // block_size) for sequence in sequences)
        table: list[int] = []
        for sequence in sequences:
            blocks = sequence.block_ids[:width]
            table.extend(blocks)
            table.extend([0] * (width - len(blocks)))
        self._tables = packer.add(table, torch.int32)
        self._lengths = packer.add([sequence.end for sequence in sequences], torch.int32)
        self._starts = packer.add([0, *accumulate(num_tokens)], torch.int32)
        self._states = PackedStates(batch, packer, drafts=drafts)

    def build(self, tensors: Sequence[Tensor], positions: Tensor, slots: Tensor, dtype: torch.dtype) -> PagedBatch:
        """``tensors``: what the packer gave. Nothing is masked by numbers, so ``dtype`` is not asked for."""
        tables = tensors[self._tables].view(self._num_seqs, -1)
        lengths, starts = tensors[self._lengths], tensors[self._starts]
        return PagedBatch(positions, slots, tables, lengths, starts, self._max_query, *self._states.build(tensors))
