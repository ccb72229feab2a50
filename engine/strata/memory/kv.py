"""The paged KV cache's tensors; which block belongs to whom is the scheduler's business."""

from __future__ import annotations

import torch


class KVPool:
    """One zeroed tensor; ``layers`` are its views, [num_blocks, block_size, 2 (key, value), kv_heads, head_dim] each.

    A token's key and value lie together, so that one call writes both, and a block of a layer is one contiguous run.
    Zeros, because attention multiplies what it masks by 0: a NaN left over in fresh memory would pass. On a CPU the
    pages are the kernel's own zero page until they are written.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_blocks, block_size, 2, num_kv_heads, head_dim)
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = self.tensor.unbind(0)

    @property
    def num_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()
