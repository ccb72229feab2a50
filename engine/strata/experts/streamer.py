"""Layers' experts through two buffers of VRAM, one filled while the other is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Streamer:
    """Brings a layer's experts ahead of the layer; layer i goes to buffer i % 2.

    ``bring(layer, buffer)`` puts what fills a buffer on the current stream. Layers are asked for in order, one step
    after another; those that need no buffer are left out.
    """

    def __init__(self, num_layers: int, bring: Callable[[int, int], None], device: torch.device) -> None:
        self._num_layers = num_layers
        self._bring = bring
        self._on = torch.cuda if device.type == "cuda" else torch.cpu  # the latter does all at once
        # What is brought goes before what computes: a layer waits for it, and it leaves most of the card alone.
        self._stream = self._on.Stream(device, -1) if device.type == "cuda" else self._on.Stream()
        self._filled = [self._on.Event(), self._on.Event()]
        self._read = [self._on.Event(), self._on.Event()]
        self._holds: list[int | None] = [None, None]  # the layer that a buffer has, or will have

    @contextmanager
    def staged(self, layer: int) -> Iterator[None]:
        """Within it, what is put on the current stream finds ``layer`` in its buffer."""
        current, mine = self._on.current_stream(), layer % 2
        for ahead in range(layer, min(layer + 2, self._num_layers)):
            self._fill(ahead, current)
        current.wait_event(self._filled[mine])
        yield
        self._read[mine].record(current)
        self._holds[mine] = None  # the next step brings it again: another one takes its place before that

    def _fill(self, layer: int, current: torch.Stream) -> None:
        mine = layer % 2
        if self._holds[mine] == layer:
            return
        if self._holds == [None, None]:  # a step begins: what the one before it moved is in its place
            self._stream.wait_stream(current)
        self._stream.wait_event(self._read[mine])  # returns at once for one that was never recorded
        with self._on.stream(self._stream):
            self._bring(layer, mine)
            self._filled[mine].record(self._stream)
        self._holds[mine] = layer
