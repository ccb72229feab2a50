"""The index keys of layers whose attention chooses what it reads, in the blocks of the KV cache."""

from __future__ import annotations

import torch

from strata.config import IndexerConfig
from strata.kernels.indexed_attention.indexer import IndexedCache
from strata.memory.kv import KVPool


class IndexPool:
    """Two zeroed tensors; ``layers`` are their views beside those of ``kv``."""

    def __init__(self, indexer: IndexerConfig, kv: KVPool) -> None:
        num_layers, num_blocks, block_size = kv.tensor.shape[:3]
        assert block_size % indexer.group_size == 0, "a block holds whole groups"

        def zeros(rows: int) -> torch.Tensor:
            return kv.tensor.new_zeros(num_layers, num_blocks, rows, indexer.head_dim)

        self._tokens, self._groups = zeros(block_size), zeros(block_size // indexer.group_size)
        self.layers = tuple(map(IndexedCache, kv.layers, self._tokens.unbind(0), self._groups.unbind(0)))

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self._tokens, self._groups))
