"""Layers' experts through two buffers of VRAM, one filled while the other is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from strata.experts.double_buffer import DoubleBuffer


class Streamer:
    """Brings a layer's experts ahead of the layer; layer i goes to buffer i % 2.

    ``bring(layer, buffer)`` puts what fills a buffer on the current stream. Layers are asked for in order, one step
    after another; those that need no buffer are left out.
    """

    def __init__(self, num_layers: int, bring: Callable[[int, int], None], device: torch.device) -> None:
        self._num_layers = num_layers
        self._bring = bring
        self._order = DoubleBuffer(device)
        self._holds: list[int | None] = [None, None]  # the layer that a buffer has, or will have

    @contextmanager
    def staged(self, layer: int) -> Iterator[None]:
        """Within it, what is put on the current stream finds ``layer`` in its buffer."""
        if self._holds == [None, None]:  # a step begins: what the one before it moved is in its place
            self._order.follow()
        for ahead in range(layer, min(layer + 2, self._num_layers)):
            self._fill(ahead)
        with self._order.reading(layer % 2):
            yield
        self._holds[layer % 2] = None  # the next step brings it again: another one takes its place before that

    def _fill(self, layer: int) -> None:
        mine = layer % 2
        if self._holds[mine] == layer:
            return
        with self._order.filling(mine):
            self._bring(layer, mine)
        self._holds[mine] = layer
