"""Indexed attention with torch's fused attention.

Where a sequence has no more groups than a token attends to it is attention to all. Else a token that decodes has the
keys and values of its own choice gathered, and a chunk attends to all through a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strata.kernels.attention import sdpa
from strata.kernels.attention.batch import AttentionBatch, AttentionGroup
from strata.kernels.indexed_attention.indexer import IndexedCache, Indexer
from strata.kernels.indexed_attention.reference import chosen, group_scores


def indexed_attention(
    query: Tensor, index_query: Tensor, cache: IndexedCache, batch: AttentionBatch, indexer: Indexer
) -> Tensor:
    """As ``reference.indexed_attention``."""
    parts = []
    for group in batch.groups[None]:
        mine = query[group.begin : group.end]
        if group.kv_len // indexer.group_size <= indexer.top:
            parts.append(sdpa.attend(mine, cache.pages, group, None))
        elif group.end - group.begin == group.num_seqs:
            parts += _decode(mine, index_query[group.begin : group.end], cache, group, indexer)
        else:
            parts.append(_prefill(mine, index_query[group.begin : group.end], cache, group, indexer))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: Tensor, index_query: Tensor, cache: IndexedCache, group: AttentionGroup, indexer: Indexer
) -> list[Tensor]:
    """A token of each sequence."""
    tables, block_size = group.blocks.view(group.num_seqs, -1), cache.pages.shape[1]
    found = []
    for row, length in enumerate(group.lengths.tolist()):
        keys = _keys(cache, tables[row], length // indexer.group_size)
        seen = chosen(group_scores(index_query[row, None], keys)[0], length - 1, indexer)
        pages = cache.pages.flatten(0, 1)[tables[row][seen // block_size] * block_size + seen % block_size]
        found.append(sdpa.fused(query[row, None], pages[None], None))
    return found


def _prefill(
    query: Tensor, index_query: Tensor, cache: IndexedCache, group: AttentionGroup, indexer: Indexer
) -> Tensor:
    """A chunk of one sequence."""
    tokens, length = len(query), group.kv_len
    pages = cache.pages.index_select(0, group.blocks).flatten(0, 1)[None, :length]
    mask = torch.full((tokens, length), -torch.inf, dtype=query.dtype, device=query.device)
    keys = _keys(cache, group.blocks, length // indexer.group_size)
    for row in range(tokens):
        position = length - tokens + row
        scores = group_scores(index_query[row, None], keys[: (position + 1) // indexer.group_size])[0]
        mask[row, chosen(scores, position, indexer)] = 0
    return sdpa.fused(query, pages, mask)


def _keys(cache: IndexedCache, table: Tensor, num_groups: int) -> Tensor:
    """float32 [num_groups, index_dim], of the first groups of a sequence."""
    blocks = -(-num_groups // cache.groups.shape[1])
    return cache.groups[table[:blocks]].flatten(0, 1)[:num_groups].float()
