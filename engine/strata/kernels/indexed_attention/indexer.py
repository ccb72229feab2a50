"""The shape of an indexer, and what its layer keeps of sequences."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from strata.kernels.matrix import Norm


@dataclass(frozen=True, slots=True)
class Indexer:
    """``top``: groups of ``group_size`` tokens that a token attends to, at most. The norms are of each head."""

    num_heads: int
    head_dim: int
    top: int
    group_size: int
    query_norm: Norm
    key_norm: Norm


@dataclass(frozen=True, slots=True)
class IndexedCache:
    """Of one layer, in the same blocks.

    pages: [blocks, block_size, 2 (key, value), kv_heads, head_dim]. tokens: [blocks, block_size, index_dim], the index
    key of each token as it was projected. groups: [blocks, block_size / group_size, index_dim], of each group that is
    whole, ready to be scored. A block holds whole groups.
    """

    pages: Tensor
    tokens: Tensor
    groups: Tensor
