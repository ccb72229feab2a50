"""Two halves of a buffer, one filled by a stream of its own while the other is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DoubleBuffer:
    """The order of both streams on halves 0 and 1; their memory belongs to who asks."""

    def __init__(self, device: torch.device) -> None:
        self._on = torch.cuda if device.type == "cuda" else torch.cpu  # the latter does all at once
        # What is brought goes before what computes: that waits for it, and it leaves most of the card alone.
        self._stream = self._on.Stream(device, -1) if device.type == "cuda" else self._on.Stream()
        self._filled = [self._on.Event(), self._on.Event()]
        self._read = [self._on.Event(), self._on.Event()]

    def follow(self) -> None:
        """What is filled from here on waits for all that the current stream has been given."""
        self._stream.wait_stream(self._on.current_stream())

    @contextmanager
    def filling(self, half: int) -> Iterator[None]:
        """Within it the current stream is the one that fills, and waits until ``half`` was read."""
        self._stream.wait_event(self._read[half])  # returns at once for one that was never recorded
        with self._on.stream(self._stream):
            yield
            self._filled[half].record(self._stream)

    @contextmanager
    def reading(self, half: int) -> Iterator[None]:
        """Within it, what is put on the current stream finds ``half`` filled."""
        current = self._on.current_stream()
        current.wait_event(self._filled[half])
        yield
        self._read[half].record(current)
