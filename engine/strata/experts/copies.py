"""Experts through two pieces of VRAM: the copy engine fills one while a kernel puts in order what the other holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from strata.experts.double_buffer import DoubleBuffer
from strata.memory.device import aligned
from strata.store.layout import BLOB_ALIGNMENT


class Copies:
    """Pieces of ``num_experts`` experts, ``stride`` bytes from one to the next."""

    def __init__(self, num_experts: int, stride: int, device: torch.device) -> None:
        self._pieces = aligned(2 * num_experts * stride, BLOB_ALIGNMENT, device).view(2, num_experts, stride)
        lie = self._pieces.data_ptr() + stride * torch.arange(2 * num_experts, dtype=torch.int64)
        self._lie = lie.view(2, num_experts).to(device)
        self._order = DoubleBuffer(device)
        self._next = 0

    @contextmanager
    def brought(self, tiles: Tensor) -> Iterator[Tensor]:
        """Within it, what is put on the current stream finds ``tiles``, uint8 [experts, stride] of memory that nobody
        writes, at these addresses: int64 [experts]. The copy itself waits for nothing but its piece."""
        mine, self._next = self._next, 1 - self._next
        with self._order.filling(mine):
            self._pieces[mine, : len(tiles)].copy_(tiles, non_blocking=True)
        with self._order.reading(mine):
            yield self._lie[mine, : len(tiles)]
