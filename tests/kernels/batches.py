"""Attention batches over a random cache, built by hand: what the runner builds is tested with the runner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from strata.kernels.attention.batch import AttentionBatch
from strata.runner.inputs import build_inputs
from strata.scheduler.batch import Batch, ScheduledSequence

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Case:
    """query [tokens, heads, head_dim], cache as ``write_kv`` takes it, and who sees what."""

    query: Tensor
    cache: Tensor
    batch: AttentionBatch
    blocks: tuple[tuple[int, ...], ...]  # of each sequence


def make_case(
    spans: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: str = "cpu",
    window: int | None = None,
) -> Case:
    """One sequence a span (start, new tokens), with blocks in random order from one pool."""
    generator = torch.Generator().manual_seed(len(spans) * 1000 + heads)
    num_blocks = sum(-(-(start + new) // BLOCK_SIZE) for start, new in spans) + 3
    free = torch.randperm(num_blocks, generator=generator).tolist()
    sequences = []
    for i, (start, new) in enumerate(spans):
        blocks = tuple(free.pop() for _ in range(-(-(start + new) // BLOCK_SIZE)))
        sequences.append(ScheduledSequence(str(i), (0,) * new, start, blocks, samples=True))
    inputs = build_inputs(Batch(tuple(sequences)), BLOCK_SIZE, torch.device(device), dtype, {window})
    assert isinstance(inputs.attention, AttentionBatch)
    tokens = sum(new for _, new in spans)
    query = torch.randn(tokens, heads, head_dim, generator=generator).to(dtype)
    cache = torch.randn(num_blocks, BLOCK_SIZE, 2, kv_heads, head_dim, generator=generator).to(dtype)
    return Case(
        query.to(device), cache.to(device), inputs.attention, tuple(sequence.block_ids for sequence in sequences)
    )
