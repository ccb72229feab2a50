"""The inputs of decode steps at fixed addresses, where a CUDA graph reads them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.scheduler.batch import Batch


class DecodeInputs:
    """Tensors for up to ``max_rows`` sequences with one new token each; ``write`` fills them for a step in one copy.

    Rows behind the last sequence see nothing and write their keys and values to the spare block, which no sequence
    has.
    """

    def __init__(
        self, max_rows: int, max_model_len: int, block_size: int, spare_block: int, device: torch.device
    ) -> None:
        self._block_size = block_size
        self._spare_slot = spare_block * block_size
        self._device = device
        width = -(-max_model_len // block_size)
        # token ids, positions and slots; lengths; tables. In this order all are aligned, and one copy takes the front.
        self._sizes = (3 * 8 * max_rows, 4 * max_rows, 4 * max_rows * width)
        self._tables_at = self._sizes[0] + self._sizes[1]
        self._row_bytes = 4 * width
        self._static = torch.zeros(sum(self._sizes), dtype=torch.uint8, device=device)
        wide, lengths, tables = self._static.split(self._sizes)
        self._token_ids, self._positions, self._slots = wide.view(torch.int64).view(3, max_rows).unbind(0)
        self._lengths = lengths.view(torch.int32)
        self._tables = tables.view(torch.int32).view(max_rows, width)
        self._starts = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self._host_tables = np.zeros((max_rows, width), dtype=np.int32)
        self._written: list[tuple[int, ...]] = [()] * max_rows  # the blocks of each row of the table

    def rows(self, num_rows: int) -> tuple[Tensor, PagedBatch]:
        """Token ids [num_rows] and what they attend to: views, which the next ``write`` changes."""
        return self._token_ids[:num_rows], PagedBatch(
            self._positions[:num_rows],
            self._slots[:num_rows],
            self._tables[:num_rows],
            self._lengths[:num_rows],
            self._starts[: num_rows + 1],
            max_query=1,
        )

    def write(self, batch: Batch, num_rows: int) -> None:
        """Fill the first ``num_rows`` rows with the batch's sequences; the rest of them sees nothing."""
        sequences, block_size = batch.sequences, self._block_size
        num_seqs = len(sequences)
        with_tables = self._write_tables(batch)
        size = self._tables_at + (self._row_bytes * num_seqs if with_tables else 0)
        # Pinned memory of its own for each step: an earlier copy may still be on its way.
        packed = torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        host = packed.numpy()
        wide = host[: self._sizes[0]].view(np.int64).reshape(3, -1)[:, :num_rows]
        wide[:, num_seqs:] = ((0,), (0,), (self._spare_slot,))
        wide[0, :num_seqs] = [sequence.token_ids[0] for sequence in sequences]
        wide[1, :num_seqs] = [sequence.start for sequence in sequences]
        wide[2, :num_seqs] = [
            sequence.block_ids[sequence.start // block_size] * block_size + sequence.start % block_size
            for sequence in sequences
        ]
        lengths = host[self._sizes[0] : self._tables_at].view(np.int32)[:num_rows]
        lengths[num_seqs:] = 0
        lengths[:num_seqs] = wide[1, :num_seqs] + 1
        if with_tables:
            host[self._tables_at :].view(np.int32)[:] = self._host_tables[:num_seqs].reshape(-1)
        self._static[:size].copy_(packed, non_blocking=True)

    def _write_tables(self, batch: Batch) -> bool:
        """Bring the host's tables up to date; False if nothing changed."""
        changed = False
        for row, sequence in enumerate(batch.sequences):
            blocks = sequence.block_ids
            if blocks is not self._written[row]:
                self._host_tables[row, : len(blocks)] = blocks
                self._written[row] = blocks
                changed = True
        return changed
