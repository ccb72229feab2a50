"""The inputs of decode steps at fixed addresses, where a CUDA graph reads them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from strata.kernels.attention.batch import Drafted, PagedBatch
from strata.runner.tables import BlockTables
from strata.scheduler.batch import Batch


class DecodeInputs:
    """Tensors for up to ``max_rows`` sequences with one new token each; ``write`` fills them for a step in one copy.

    Rows behind the last sequence see nothing and write their keys and values to the spare block, which no sequence
    has, and a state to the spare slot.
    """

    def __init__(
        self,
        max_rows: int,
        max_fed: int,
        max_model_len: int,
        block_size: int,
        spare_block: int,
        spare_state: int | None,
        device: torch.device,
        *,
        drafts: bool = False,
    ) -> None:
        """``max_fed``: tokens that any step draws, at most. ``spare_state``: None for a model without states.
        ``drafts``: whether other steps have some."""
        self._block_size = block_size
        self._spare_slot = spare_block * block_size
        self._spare_state = spare_state
        self._device = device
        self._tables = BlockTables(max_rows, max_model_len, block_size)
        # What comes from the host: token ids, positions, slots and sources; lengths, slots of states, how many tokens
        # lack; tables. In this order all are aligned, and one copy takes the front.
        num_narrow = 1 if spare_state is None else 3 if drafts else 2
        self._sizes = (4 * 8 * max_rows, num_narrow * 4 * max_rows, self._tables.num_bytes)
        self._tables_at = self._sizes[0] + self._sizes[1]
        fed_bytes = 8 * max_fed
        static = torch.zeros(fed_bytes + sum(self._sizes), dtype=torch.uint8, device=device)
        self._from_host = static[fed_bytes:]
        # Fed tokens and the host's in one row, so that one gather takes either.
        self._tokens = static[: fed_bytes + 8 * max_rows].view(torch.int64)
        self._fed = self._tokens[:max_fed]
        wide, narrow, tables = self._from_host.split(self._sizes)
        _, self._positions, self._slots, self._sources = wide.view(torch.int64).view(4, max_rows).unbind(0)
        self._lengths, *states = narrow.view(torch.int32).view(num_narrow, max_rows).unbind(0)
        self._states = states[0] if states else None
        self._drafted = Drafted(states[1], torch.zeros_like(states[1])) if states[1:] else None
        self._device_tables = tables.view(torch.int32).view(max_rows, -1)
        self._starts = torch.arange(max_rows + 1, dtype=torch.int32, device=device)

    def token_ids(self, num_rows: int) -> Tensor:
        """int64 [num_rows], gathered anew at each call."""
        return self._tokens.index_select(0, self._sources[:num_rows])

    def seen(self, num_rows: int) -> PagedBatch:
        """What the rows attend to: views, which the next ``write`` changes."""
        drafted = self._drafted
        return PagedBatch(
            self._positions[:num_rows],
            self._slots[:num_rows],
            self._device_tables[:num_rows],
            self._lengths[:num_rows],
            self._starts[: num_rows + 1],
            max_query=1,
            states=None if self._states is None else self._states[:num_rows],
            drafted=None if drafted is None else Drafted(drafted.replayed[:num_rows], drafted.drafts[:num_rows]),
        )

    def write(self, batch: Batch, num_rows: int, feed: Tensor | None = None) -> None:
        """Fill the first ``num_rows`` rows with the batch's sequences; the rest of them sees nothing. ``feed``: int64,
        the tokens that the step before drew, -1 for none."""
        sequences, block_size = batch.sequences, self._block_size
        num_seqs = len(sequences)
        with_tables = self._tables.write([sequence.block_ids for sequence in sequences])
        size = self._tables_at + (self._tables.row_bytes * num_seqs if with_tables else 0)
        # Pinned memory of its own for each step: an earlier copy may still be on its way.
        packed = torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        host = packed.numpy()
        wide = host[: self._sizes[0]].view(np.int64).reshape(4, -1)
        max_fed = self._fed.shape[0]
        token_ids, positions, slots, sources = wide[:, :num_rows]
        wide[:, num_seqs:num_rows] = ((0,), (0,), (self._spare_slot,), (max_fed,))
        token_ids[:num_seqs] = [sequence.token_ids[0] for sequence in sequences]
        positions[:num_seqs] = [sequence.start for sequence in sequences]
        slots[:num_seqs] = [
            sequence.block_ids[sequence.start // block_size] * block_size + sequence.start % block_size
            for sequence in sequences
        ]
        sources[:num_seqs] = [
            max_fed + row if sequence.source is None else sequence.source for row, sequence in enumerate(sequences)
        ]
        narrow = host[self._sizes[0] : self._tables_at].view(np.int32).reshape(-1, wide.shape[1])
        narrow[0, num_seqs:num_rows] = 0
        narrow[0, :num_seqs] = positions[:num_seqs] + 1
        if self._states is not None:
            narrow[1, num_seqs:num_rows] = self._spare_state
            narrow[1, :num_seqs] = [sequence.state_slot for sequence in sequences]
        if self._drafted is not None:
            narrow[2, num_seqs:num_rows] = 0
            narrow[2, :num_seqs] = [sequence.num_replayed for sequence in sequences]
        if with_tables:
            host[self._tables_at :].view(np.int32)[:] = self._tables.first(num_seqs)
        if feed is not None:
            torch.clamp(feed, min=0, out=self._fed[: len(feed)])
        self._from_host[:size].copy_(packed, non_blocking=True)
