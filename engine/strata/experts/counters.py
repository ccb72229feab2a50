"""What the device counts, and how the host sees it without a wait."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from strata.experts.counts import ExpertCounts
from strata.kernels.misses.table import Counter

# Between two looks. One costs the device a copy of some KiB between two steps, the host 0.1 ms until it is sent (48
# layers); a step without one 0.14 us (a Zen core, 2026-11-30).
SECONDS = 1.0


class Counters:
    """``tensor``: int64 [layers, len(Counter)] on the device, where steps add to it."""

    def __init__(self, layers: Sequence[int], device: torch.device) -> None:
        """``layers``: numbers of those that have experts."""
        self._layers = layers
        self.tensor = torch.zeros(len(layers), len(Counter), dtype=torch.int64, device=device)
        self._copy = torch.zeros(self.tensor.shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._arrival = (torch.cuda if device.type == "cuda" else torch.cpu).Event()
        self._on_its_way = False  # a copy
        self._due = 0.0  # the next one

    def clear(self) -> None:
        """Begin again at zero."""
        self.tensor.zero_()

    def look(self, *, wait: bool) -> dict[int, ExpertCounts] | None:
        """Of each layer by its number. ``wait``: now, when the device has done all that it was given; else behind the
        steps that it had been given at the look before, and None where that copy has not arrived, or none is due."""
        if wait:
            return self._of_layers(self.tensor)
        if self._on_its_way:
            if not self._arrival.query():
                return None
            self._on_its_way = False
            return self._of_layers(self._copy)
        now = time.monotonic()
        if now >= self._due:
            self._due = now + SECONDS
            self._on_its_way = True
            with torch.inference_mode():
                self._copy.copy_(self.tensor, non_blocking=True)
            self._arrival.record()
        return None

    def _of_layers(self, tensor: Tensor) -> dict[int, ExpertCounts]:
        return {layer: ExpertCounts(*row) for layer, row in zip(self._layers, tensor.tolist(), strict=True)}
