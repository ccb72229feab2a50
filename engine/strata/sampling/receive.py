"""A small tensor on its way to the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Received:
    """Asks for ``tensor`` as it will be when the device has done what it was given so far; the host goes on."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._tensor = tensor.clone()

    def tolist(self) -> list[Any]:
        """Its numbers; waits for them."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.tolist()
