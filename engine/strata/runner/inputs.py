"""A scheduled batch to tensors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from strata.kernels.attention.batch import StepBatch
from strata.runner.gathered import Gathered
from strata.runner.pack import Packer
from strata.runner.paged import Paged
from strata.scheduler.batch import Batch, ScheduledSequence

Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Inputs:
    """One step on the device. sampled: int64 rows whose logits are needed; None means every row."""

    token_ids: Tensor
    attention: StepBatch
    sampled: Tensor | None
    num_sampled: int


def build_inputs(
    batch: Batch,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    windows: Collection[int | None] = (None,),
    *,
    reads_pages: bool = False,
    drafts: bool = False,
    feed: Tensor | None = None,
) -> Inputs:
    """Tensors of the step; masks are in ``dtype``. ``windows``: the different ones of the model's layers.
    ``reads_pages``: see ``kernels.layer.Kernels``. ``drafts``: whether steps may have some. ``feed``: int64, the tokens
    that the step before drew, -1 for none.

    All integers travel in one tensor: one copy to the device a step.
    """
    packer = Packer()
    token_ids = np.concatenate([np.array(sequence.token_ids, dtype=np.int64) for sequence in batch.sequences])
    spans = [np.arange(sequence.start, sequence.end) for sequence in batch.sequences]
    slots = [_slots(sequence, span, block_size) for sequence, span in zip(batch.sequences, spans, strict=True)]
    ends = accumulate(len(span) for span in spans)
    sampled = [
        row
        for sequence, end in zip(batch.sequences, ends, strict=True)
        for row in range(end - sequence.num_sampled, end)
    ]
    for values in (token_ids, np.concatenate(spans), np.concatenate(slots), sampled):
        packer.add(values)
    fed = _sources(batch, packer)
    seen = (
        Paged(batch, block_size, packer, drafts=drafts)
        if reads_pages
        else Gathered(batch, block_size, windows, packer, drafts=drafts)
    )
    token_ids_t, positions_t, slots_t, sampled_t, *_ = tensors = packer.to(device)
    if fed is not None:
        assert feed is not None, "the batch has tokens that only the device knows"
        token_ids_t = torch.cat([token_ids_t, feed.clamp(min=0)]).index_select(0, tensors[fed])
    return Inputs(
        token_ids_t,
        seen.build(tensors, positions_t, slots_t, dtype),
        None if len(sampled) == len(token_ids) else sampled_t,
        len(sampled),
    )


def _slots(sequence: ScheduledSequence, positions: Positions, block_size: int) -> Positions:
    first = sequence.start // block_size
    blocks = np.array(sequence.block_ids[first : -(-sequence.end // block_size)], dtype=np.int64)
    return blocks[positions // block_size - first] * block_size + positions % block_size


def _sources(batch: Batch, packer: Packer) -> int | None:
    """Where each row's token stands in the host's tokens with the fed ones behind them; None where none is fed."""
    if all(sequence.source is None for sequence in batch.sequences):
        return None
    num_tokens = batch.num_tokens
    sources: list[int] = []
    for sequence in batch.sequences:
        if sequence.source is None:
            sources.extend(range(len(sources), len(sources) + len(sequence.token_ids)))
        else:
            sources.append(num_tokens + sequence.source)
    return packer.add(sources)
