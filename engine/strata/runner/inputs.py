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
) -> Inputs:
    """Tensors of the step; masks are in ``dtype``. ``windows``: the different ones of the model's layers.
    ``reads_pages``: see ``kernels.layer.Kernels``.

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
    seen = Paged(batch, block_size, packer) if reads_pages else Gathered(batch, block_size, windows, packer)
    token_ids_t, positions_t, slots_t, sampled_t, *_ = tensors = packer.to(device)
    return Inputs(
        token_ids_t,
        seen.build(tensors, positions_t, slots_t, dtype),
        None if len(sampled) == len(token_ids) else sampled_t,
        len(sampled),
    )
