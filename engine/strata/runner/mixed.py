"""The inputs of steps with prompts at fixed addresses, where a CUDA graph reads them."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from strata.kernels.attention.batch import Drafted, PagedBatch
from strata.runner.tables import BlockTables
from strata.scheduler.batch import Batch


class MixedInputs:
    """Tensors for up to ``max_tokens`` new tokens of up to ``max_seqs`` sequences; ``write`` fills them for a step in
    one copy.

    What is left of a step's tokens is a prompt of nobody in the spare block, which no sequence has, and with the spare
    state; sequences that a step has less than ``max_seqs`` have no new tokens in it.
    """

    def __init__(
        self,
        max_tokens: int,
        max_seqs: int,
        max_model_len: int,
        block_size: int,
        spare_block: int,
        spare_state: int | None,
        device: torch.device,
        *,
        drafts: bool = False,
    ) -> None:
        """``max_tokens`` is ``max_model_len`` at most. ``spare_state``: None for a model without states. ``drafts``:
        whether steps may have some."""
        assert max_tokens <= max_model_len, "the rest of a step is one sequence"
        self._block_size = block_size
        self._device = device
        self.max_seqs = max_seqs
        self._tables = BlockTables(max_seqs + 1, max_model_len, block_size)
        self._nobodys = (spare_block,) * self._tables.width
        self._spare_state = spare_state
        # What comes from the host, 8 bytes each: token ids, positions, slots, sources, rows that are sampled; 4 bytes:
        # lengths, starts, slots of states, how many tokens these lack and shall lack; tables. In this order all are
        # aligned, and one copy takes the front.
        self._wide = (max_tokens,) * 5
        of_states = 0 if spare_state is None else max_seqs + 1
        of_drafts = of_states if drafts else 0
        self._narrow = (max_seqs + 1, max_seqs + 2, of_states, of_drafts, of_drafts)
        self._tables_at = 8 * sum(self._wide) + 4 * sum(self._narrow)
        fed_bytes = 8 * self.max_seqs
        static = torch.zeros(fed_bytes + self._tables_at + self._tables.num_bytes, dtype=torch.uint8, device=device)
        self._from_host = static[fed_bytes:]
        # Fed tokens and the host's in one row, so that one gather takes either.
        self._tokens = static[: fed_bytes + 8 * max_tokens].view(torch.int64)
        wide = self._from_host[: 8 * sum(self._wide)].view(torch.int64)
        _, self._positions, self._slots, self._sources, self._sampled = wide.split(self._wide)
        narrow = self._from_host[8 * sum(self._wide) : self._tables_at].view(torch.int32)
        self._lengths, self._starts, states, *drafted = narrow.split(self._narrow)
        self._states = states if of_states else None
        self._drafted = Drafted(*drafted) if of_drafts else None
        self._device_tables = self._from_host[self._tables_at :].view(torch.int32).view(max_seqs + 1, -1)

    def token_ids(self, num_tokens: int) -> Tensor:
        """int64 [num_tokens], gathered anew at each call."""
        return self._tokens.index_select(0, self._sources[:num_tokens])

    def seen(self, num_tokens: int) -> PagedBatch:
        """What the tokens attend to: views, which the next ``write`` changes."""
        return PagedBatch(
            self._positions[:num_tokens],
            self._slots[:num_tokens],
            self._device_tables,
            self._lengths,
            self._starts,
            max_query=num_tokens,
            states=self._states,
            drafted=self._drafted,
        )

    def sampled(self, batch: Batch) -> Tensor:
        """int64: the rows of the step that was written whose logits are needed."""
        return self._sampled[: sum(sequence.num_sampled for sequence in batch.sequences)]

    def write(self, batch: Batch, num_tokens: int, feed: Tensor | None = None) -> None:
        """Fill ``num_tokens`` tokens with the batch's and nobody's. ``feed``: int64, the tokens that the step before
        drew, -1 for none."""
        sequences, used = batch.sequences, batch.num_tokens
        with_tables = self._tables.write([*(sequence.block_ids for sequence in sequences), self._nobodys])
        num_rows = len(sequences) + 1 if with_tables else 0
        # Pinned memory of its own for each step: an earlier copy may still be on its way.
        packed = torch.empty(
            self._tables_at + self._tables.row_bytes * num_rows,
            dtype=torch.uint8,
            pin_memory=self._device.type == "cuda",
        )
        host = packed.numpy()
        wide = np.split(host[: 8 * sum(self._wide)].view(np.int64), np.cumsum(self._wide)[:-1])
        token_ids, positions, slots, sources, sampled = wide
        narrow = host[8 * sum(self._wide) : self._tables_at].view(np.int32)
        lengths, starts, states, replayed, drafts = np.split(narrow, np.cumsum(self._narrow)[:-1])
        begin = 0
        for sequence in sequences:
            end = begin + len(sequence.token_ids)
            token_ids[begin:end] = sequence.token_ids
            positions[begin:end] = np.arange(sequence.start, sequence.end)
            slots[begin:end] = self._slots_of(sequence.block_ids, positions[begin:end])
            sources[begin:end] = np.arange(begin, end) + self.max_seqs if sequence.source is None else sequence.source
            begin = end
        rest = num_tokens - used
        token_ids[used:num_tokens] = 0
        positions[used:num_tokens] = np.arange(rest)
        slots[used:num_tokens] = self._slots_of(self._nobodys, positions[used:num_tokens])
        sources[used:num_tokens] = np.arange(used, num_tokens) + self.max_seqs
        ends = list(accumulate(len(sequence.token_ids) for sequence in sequences))
        rows = [
            row for sequence, end in zip(sequences, ends, strict=True) for row in range(end - sequence.num_sampled, end)
        ]
        sampled[: len(rows)] = rows
        starts[:] = num_tokens
        starts[: len(ends) + 1] = (0, *ends)
        lengths[:] = 0
        lengths[: len(sequences) + 1] = [*(sequence.end for sequence in sequences), rest]
        if self._spare_state is not None:
            states[:] = self._spare_state
            states[: len(sequences)] = [sequence.state_slot for sequence in sequences]
        if self._drafted is not None:
            replayed[:] = drafts[:] = 0
            replayed[: len(sequences)] = [sequence.num_replayed for sequence in sequences]
            drafts[: len(sequences)] = [sequence.num_drafts for sequence in sequences]
        if with_tables:
            host[self._tables_at :].view(np.int32)[:] = self._tables.first(num_rows)
        if feed is not None:
            torch.clamp(feed, min=0, out=self._tokens[: len(feed)])
        self._from_host[: len(host)].copy_(packed, non_blocking=True)

    def _slots_of(self, blocks: tuple[int, ...], positions: np.ndarray) -> np.ndarray:
        if not len(positions):
            return positions
        first = positions[0] // self._block_size
        used = np.array(blocks[first : positions[-1] // self._block_size + 1], dtype=np.int64)
        return used[positions // self._block_size - first] * self._block_size + positions % self._block_size
