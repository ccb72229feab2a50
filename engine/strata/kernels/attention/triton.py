"""Paged attention on an NVIDIA GPU: from the product of q, k and v to what the output product takes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch, StepBatch
from strata.kernels.attention.decode import decode
from strata.kernels.attention.prefill import prefill
from strata.kernels.attention.tuning import tuning
from strata.kernels.layer import AttentionFn, Heads, Inner, Rotation
from strata.kernels.matrix import Norm
from strata.kernels.quantize.triton import quantize
from strata.kernels.rows import empty_rows, wants_quantized


def prepare(heads: Heads) -> AttentionFn:
    """The step of one layer: (qkv bf16 [tokens, num_projected * head_dim], rotation in bf16, cache bf16
    [blocks, block_size, 2, kv_heads, head_dim], PagedBatch) -> the attended heads [tokens, heads * head_dim], quantised
    where ``wants_quantized``.

    The new keys and values are left in the cache. A padding row leaves none, and is given zeros.
    """
    heads = replace(
        heads,
        query_norm=_wide(heads.query_norm),
        key_norm=_wide(heads.key_norm),
        sinks=None if heads.sinks is None else heads.sinks.float().contiguous(),
    )

    def attend(qkv: Tensor, rotation: Rotation, cache: Tensor, batch: StepBatch) -> Inner:
        assert isinstance(batch, PagedBatch), "these kernels read the cache's pages where they lie"
        chosen = tuning(heads.head_dim)
        tokens, columns = len(qkv), heads.num_heads * heads.head_dim
        if batch.max_query == 1 and wants_quantized(tokens):
            rows = empty_rows(tokens, columns, qkv.device)
            decode(heads, chosen.decode, qkv, rotation, cache, batch, rows)
            return rows
        out = torch.empty(tokens, columns, dtype=qkv.dtype, device=qkv.device)
        several = len(batch.lengths) > 1
        if batch.max_query > 1:
            prefill(heads, chosen.prefill, qkv, rotation, cache, batch, out, leave_decoding=several)
        if batch.max_query == 1 or several:
            decode(heads, chosen.decode, qkv, rotation, cache, batch, out)
        return quantize(out) if wants_quantized(tokens) else out

    return attend


def _wide(norm: Norm | None) -> Norm | None:
    return None if norm is None else replace(norm, weight=norm.weight.float().contiguous())
