"""Memory of a device that is one piece of bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def aligned(num_bytes: int, alignment: int, device: torch.device) -> Tensor:
    """uint8 [num_bytes], not initialised, whose address is a multiple of ``alignment``."""
    memory = torch.empty(num_bytes + alignment, dtype=torch.uint8, device=device)
    begin = -memory.data_ptr() % alignment
    return memory[begin : begin + num_bytes]


def wait_for(device: torch.device) -> None:
    """Until it has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
