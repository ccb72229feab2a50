"""What a layer with n-grams does, in plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.attention.batch import StepBatch


@dataclass(frozen=True, slots=True)
class Rows:
    """Of each row of a step: its sequence's slot, its place among that sequence's new tokens, and how many come after
    it; int64 [tokens]."""

    slots: Tensor
    within: Tensor
    after: Tensor

    @classmethod
    def of(cls, batch: StepBatch) -> Rows:
        assert batch.states is not None, "a step with n-grams says where its sequences' states are"
        starts = batch.starts.long()
        rows = torch.arange(len(batch.positions), device=starts.device)
        sequences = torch.searchsorted(starts, rows, right=True) - 1
        return cls(batch.states.long()[sequences], rows - starts[sequences], starts[sequences + 1] - 1 - rows)


def before(values: Tensor, ring: Tensor, distance: int, batch: StepBatch, rows: Rows) -> Tensor:
    """values [tokens, ...] of the step, ring [slots, length, ...] with those of earlier steps -> as values: of the
    token ``distance`` before each; 0 where there is none."""
    positions = batch.positions - distance
    earlier = ring[rows.slots, positions % ring.shape[1]]
    shape = (-1,) + (1,) * (values.dim() - 1)
    known = torch.where((rows.within >= distance).view(shape), values.roll(distance, 0), earlier)
    return known.masked_fill((positions < 0).view(shape), 0)


def keep_(values: Tensor, ring: Tensor, batch: StepBatch, rows: Rows) -> None:
    """Put the last of values into the ring."""
    last = (rows.after < ring.shape[1]).nonzero().flatten()
    ring[rows.slots[last], batch.positions[last] % ring.shape[1]] = values[last]


def history_(token_ids: Tensor, ring: Tensor, num_before: int, eos: int, batch: StepBatch) -> Tensor:
    """token_ids int64 [tokens], ring int64 [slots, length], which takes the last of them -> int64 [tokens, num_before +
    1]: each token behind those before it, ``eos`` where a sequence has none."""
    rows = Rows.of(batch)
    columns = [
        before(token_ids, ring, distance, batch, rows).masked_fill(batch.positions < distance, eos)
        for distance in range(num_before, 0, -1)
    ]
    keep_(token_ids, ring, batch, rows)
    return torch.stack([*columns, token_ids], 1)


def convolve_(inputs: Tensor, weight: Tensor, dilation: int, ring: Tensor, batch: StepBatch) -> Tensor:
    """silu of the causal convolution of each channel. inputs [tokens, channels], weight [channels, kernel], ring
    [slots, length, channels], which takes the last inputs -> as inputs."""
    rows, kernel = Rows.of(batch), weight.shape[1]
    out = inputs * weight[:, -1]
    for tap in range(1, kernel):
        out.addcmul_(before(inputs, ring, tap * dilation, batch, rows), weight[:, -1 - tap])
    keep_(inputs, ring, batch, rows)
    return functional.silu(out)


def gated(key: Tensor, query: Tensor, value: Tensor) -> Tensor:
    """key and query [tokens, streams, hidden], normalised; value [tokens, hidden] -> [tokens, streams, hidden]: value
    times sigmoid(sign(s) * sqrt(|s|)), s being key . query / sqrt(hidden) of each stream."""
    scores = (key * query).sum(-1) / math.sqrt(key.shape[-1])
    opening = torch.sigmoid(scores.abs().clamp_min(1e-6).sqrt() * scores.sign())
    return opening[..., None] * value[:, None]
