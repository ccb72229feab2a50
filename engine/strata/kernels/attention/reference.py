"""Causal attention over a paged KV cache, one sequence at a time in float32: what every faster version is held to."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strata.kernels.attention.batch import AttentionBatch


def write_kv(kv: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Put kv [tokens, 2 (key, value), kv_heads, head_dim] into cache [blocks, block_size, 2, kv_heads, head_dim] at
    slots int64 [tokens]."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, kv)


def paged_attention(
    query: Tensor, cache: Tensor, batch: AttentionBatch, window: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """query [tokens, heads, head_dim], cache [blocks, block_size, 2, kv_heads, head_dim], which holds the new tokens'
    keys and values already -> [tokens, heads, head_dim].

    Query head h reads KV head h // (heads // kv_heads). A token at position p sees positions 0 .. p of its sequence,
    through a window the last ``window`` of these, its own included. sinks [heads]: a logit of each head that takes its
    part of the softmax and brings no value.
    """
    out = torch.empty_like(query)
    heads, head_dim = query.shape[1:]
    repeats = heads // cache.shape[3]
    for group in batch.groups[window]:
        tables = group.blocks.view(group.num_seqs, -1)
        rows = (group.end - group.begin) // group.num_seqs
        for i in range(group.num_seqs):
            mine = slice(group.begin + i * rows, group.begin + (i + 1) * rows)
            length = int(group.lengths[i])
            key, value = cache[tables[i]].flatten(0, 1)[:length].float().repeat_interleave(repeats, 2).unbind(1)
            scores = torch.einsum("qhd,khd->hqk", query[mine].float(), key) / math.sqrt(head_dim)
            distance = batch.positions[mine, None] - group.starts[i] - torch.arange(length, device=query.device)
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            scores = scores.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, rows, 1)], -1)
            weights = scores.softmax(-1)[..., :length]
            out[mine] = torch.einsum("hqk,khd->qhd", weights, value).to(out.dtype)
    return out
