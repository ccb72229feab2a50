"""A step of attention over pages in random order, and what it must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch, StepBatch
from strata.kernels.layer import Heads, Kernels, Rotation
from strata.kernels.matrix import Norm
from strata.kernels.operations import REFERENCE
from strata.runner.inputs import build_inputs
from strata.scheduler.batch import Batch, ScheduledSequence

Span = tuple[int, int]  # start, new tokens


@dataclass(frozen=True, slots=True)
class Step:
    """cache: NaN wherever nothing was written. ``expected``: attended heads [tokens, ...] and the cache after the step,
    computed in float32."""

    heads: Heads
    qkv: Tensor
    rotation: Rotation
    cache: Tensor
    batch: PagedBatch
    expected: tuple[Tensor, Tensor]

    def to(self, device: str) -> Step:
        heads, batch = self.heads, self.batch
        norms = [None if norm is None else Norm(norm.weight.to(device), norm.eps) for norm in _norms(heads)]
        sinks = None if heads.sinks is None else heads.sinks.to(device)
        return Step(
            replace(heads, query_norm=norms[0], key_norm=norms[1], sinks=sinks),
            self.qkv.to(device),
            Rotation(self.rotation.cos.to(device), self.rotation.sin.to(device)),
            self.cache.to(device),
            PagedBatch(
                batch.positions.to(device),
                batch.slots.to(device),
                batch.tables.to(device),
                batch.lengths.to(device),
                batch.starts.to(device),
                batch.max_query,
            ),
            self.expected,
        )


def _norms(heads: Heads) -> tuple[Norm | None, Norm | None]:
    return heads.query_norm, heads.key_norm


def make_step(
    spans: Sequence[Span],
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    *,
    window: int | None = None,
    norm: bool = True,
    sinks: bool = False,
    gated: bool = False,
    rotary_dim: int | None = None,
    block_size: int = 16,
    seed: int = 0,
) -> Step:
    torch.manual_seed(seed)
    num_blocks = sum(-(-(start + new) // block_size) for start, new in spans) + 2
    free = torch.randperm(num_blocks).tolist()
    sequences = []
    for i, (start, new) in enumerate(spans):
        blocks = tuple(free.pop() for _ in range(-(-(start + new) // block_size)))
        sequences.append(ScheduledSequence(str(i), (0,) * new, start, blocks, samples=True))
    tokens, turned = sum(new for _, new in spans), rotary_dim or head_dim
    angles = 6 * torch.rand(tokens, 1, turned // 2)
    cos, sin = angles.cos(), angles.sin()
    rotation = Rotation(torch.cat([cos, cos], -1).bfloat16(), torch.cat([-sin, sin], -1).bfloat16())
    cache = torch.full((num_blocks, block_size, 2, num_kv_heads, head_dim), torch.nan, dtype=torch.bfloat16)
    for (start, _), sequence in zip(spans, sequences, strict=True):
        for position in range(start):
            block = sequence.block_ids[position // block_size]
            cache[block, position % block_size] = torch.randn(2, num_kv_heads, head_dim).bfloat16()
    norms = [Norm((1 + 0.3 * torch.randn(head_dim)).bfloat16(), 1e-6) if norm else None for _ in range(2)]
    sink = (3 * torch.randn(num_heads)).bfloat16() if sinks else None
    heads = Heads(num_heads, num_kv_heads, head_dim, window, norms[0], norms[1], sink, gated)
    qkv = ((2 if norm else 1) * torch.randn(tokens, heads.num_projected * head_dim)).bfloat16()

    def batch(reads_pages: bool) -> StepBatch:
        return build_inputs(
            Batch(tuple(sequences)),
            block_size,
            torch.device("cpu"),
            torch.float32,
            {window},
            reads_pages=reads_pages,
        ).attention

    after = cache.float()
    wide = Rotation(rotation.cos.float(), rotation.sin.float())
    attended = Kernels(REFERENCE, torch.float32).attention(heads)(qkv.float(), wide, after, batch(False))
    paged = batch(True)
    assert isinstance(paged, PagedBatch)
    return Step(heads, qkv, rotation, cache, paged, (attended, after))
