"""A scheduled batch to tensors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from strata.kernels.attention.batch import StepBatch
from strata.runner.gathered import Gathered
from strata.runner.pack import Packer
from strata.runner.paged import Paged
from strata.scheduler.batch import Batch


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
    feed: Tensor | None = None,
) -> Inputs:
    """Tensors of the step; masks are in ``dtype``. ``windows``: the different ones of the model's layers.
    ``reads_pages``: see ``kernels.layer.Kernels``. ``feed``: int64, the tokens that the step before drew, -1 for none.

    All integers travel in one tensor: one copy to the device a step.
    """
    packer = Packer()
    positions: list[int] = []
    slots: list[int] = []
    token_ids: list[int] = []
    sampled: list[int] = []
    for sequence in batch.sequences:
        span = range(sequence.start, sequence.end)
        positions.extend(span)
        slots.extend(sequence.block_ids[p // block_size] * block_size + p % block_size for p in span)
        token_ids.extend(sequence.token_ids)
        if sequence.samples:
            sampled.append(len(token_ids) - 1)
    for values in (token_ids, positions, slots, sampled):
        packer.add(values)
    fed = _sources(batch, packer)
    seen = Paged(batch, block_size, packer) if reads_pages else Gathered(batch, block_size, windows, packer)
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
