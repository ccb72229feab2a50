"""Indexed attention in plain torch, one token at a time: what every faster version is held to."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from strata.kernels.attention.batch import AttentionBatch
from strata.kernels.indexed_attention.indexer import IndexedCache, Indexer


def write_index(
    keys: Tensor,
    cache: IndexedCache,
    batch: AttentionBatch,
    group_size: int,
    finish: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Put keys [tokens, index_dim] into ``cache.tokens``, and into ``cache.groups`` those of groups that end with one
    of them. finish: (means [groups, 1, index_dim], the rows of the last tokens) -> as the means, ready to be scored."""
    tokens, groups = cache.tokens.flatten(0, 1), cache.groups.flatten(0, 1)
    tokens.index_copy_(0, batch.slots, keys)
    last = (batch.positions % group_size == group_size - 1).nonzero().flatten()
    slots = batch.slots[last]
    members = slots[:, None] - torch.arange(group_size, device=slots.device)
    means = tokens[members].float().mean(1).to(keys.dtype)
    groups.index_copy_(0, slots // group_size, finish(means[:, None], last)[:, 0])


def chosen(scores: Tensor, position: int, indexer: Indexer) -> Tensor:
    """scores float32 [whole groups up to ``position``] -> int64, the positions that a token there attends to, those of
    the best groups first."""
    size = indexer.group_size
    best = scores.topk(min(indexer.top, len(scores)), sorted=False).indices
    members = best[:, None] * size + torch.arange(size, device=scores.device)
    tail = torch.arange(len(scores) * size, position + 1, device=scores.device)
    return torch.cat([members.flatten(), tail])


def group_scores(query: Tensor, keys: Tensor) -> Tensor:
    """query [tokens, index_heads, index_dim], keys [groups, index_dim] -> float32 [tokens, groups]."""
    return (query.float() @ keys.float().T).relu_().sum(1) / math.sqrt(query.shape[-1])


def indexed_attention(
    query: Tensor, index_query: Tensor, cache: IndexedCache, batch: AttentionBatch, indexer: Indexer
) -> Tensor:
    """query [tokens, heads, head_dim], index_query [tokens, index_heads, index_dim]; the cache holds what the step's
    tokens bring already -> [tokens, heads, head_dim]."""
    out = torch.empty_like(query)
    heads, head_dim = query.shape[1:]
    repeats = heads // cache.pages.shape[3]
    for group in batch.groups[None]:
        tables = group.blocks.view(group.num_seqs, -1)
        rows = (group.end - group.begin) // group.num_seqs
        for row in range(group.begin, group.end):
            table, position = tables[(row - group.begin) // rows], int(batch.positions[row])
            keys = cache.groups[table].flatten(0, 1)[: (position + 1) // indexer.group_size]
            seen = chosen(group_scores(index_query[row, None], keys)[0], position, indexer)
            key, value = cache.pages[table].flatten(0, 1)[seen].float().repeat_interleave(repeats, 2).unbind(1)
            scores = torch.einsum("hd,khd->hk", query[row].float(), key) / math.sqrt(head_dim)
            out[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), value).to(out.dtype)
    return out
