"""Experts through two pieces of VRAM: the copy engine fills one while a kernel puts in order what the other holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from strata.memory.device import aligned
from strata.store.layout import BLOB_ALIGNMENT


class Copies:
    """Pieces of ``num_experts`` experts, ``stride`` bytes from one to the next."""

    def __init__(self, num_experts: int, stride: int, device: torch.device) -> None:
        self._pieces = aligned(2 * num_experts * stride, BLOB_ALIGNMENT, device).view(2, num_experts, stride)
        lie = self._pieces.data_ptr() + stride * torch.arange(2 * num_experts, dtype=torch.int64)
        self._lie = lie.view(2, num_experts).to(device)
        self._on = torch.cuda if device.type == "cuda" else torch.cpu  # the latter does all at once
        self._stream = self._on.Stream(device, -1) if device.type == "cuda" else self._on.Stream()
        self._filled = [self._on.Event(), self._on.Event()]
        self._read = [self._on.Event(), self._on.Event()]
        self._next = 0

    @contextmanager
    def brought(self, tiles: Tensor) -> Iterator[Tensor]:
        """Within it, what is put on the current stream finds ``tiles``, uint8 [experts, stride] of memory that nobody
        writes, at these addresses: int64 [experts]. The copy itself waits for nothing but its piece."""
        current, mine = self._on.current_stream(), self._next
        self._next = 1 - mine
        self._stream.wait_event(self._read[mine])  # returns at once for one that was never recorded
        with self._on.stream(self._stream):
            self._pieces[mine, : len(tiles)].copy_(tiles, non_blocking=True)
            self._filled[mine].record(self._stream)
        current.wait_event(self._filled[mine])
        yield self._lie[mine, : len(tiles)]
        self._read[mine].record(current)
