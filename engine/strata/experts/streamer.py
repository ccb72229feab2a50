"""Layers' experts through two buffers of VRAM, one filled while the other is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Streamer:
    """Copies a layer's experts ahead of the layer.

    ``layers``: uint8 [experts, bytes] in pinned host memory, some of them empty; ``buffers``: [2, most experts, bytes]
    on the device, layer i goes to buffer i % 2. Layers are asked for in order, one step after another.
    """

    def __init__(self, layers: Sequence[Tensor], buffers: Tensor, device: torch.device) -> None:
        self._layers = layers
        self._buffers = buffers
        self._on = torch.cuda if device.type == "cuda" else torch.cpu  # the latter does all at once
        self._stream = self._on.Stream(device)
        self._filled = [self._on.Event(), self._on.Event()]
        self._read = [self._on.Event(), self._on.Event()]
        self._holds: list[int | None] = [None, None]  # the layer that a buffer has, or will have

    @contextmanager
    def staged(self, row: int) -> Iterator[None]:
        """Within it, what is put on the current stream finds layer ``row`` in its buffer."""
        for ahead in range(row, min(row + 2, len(self._layers))):
            self._fill(ahead)
        current, mine = self._on.current_stream(), row % 2
        current.wait_event(self._filled[mine])
        yield
        self._read[mine].record(current)
        self._holds[mine] = None  # the next step brings it again: another one takes its place before that

    def _fill(self, row: int) -> None:
        mine, experts = row % 2, self._layers[row]
        if self._holds[mine] == row:
            return
        self._stream.wait_event(self._read[mine])  # returns at once for one that was never recorded
        with self._on.stream(self._stream):
            self._buffers[mine, : len(experts)].copy_(experts, non_blocking=True)
            self._filled[mine].record()
        self._holds[mine] = row
