"""How fast a device reads its memory: the bound of decoding."""

from __future__ import annotations

import time
from typing import Any

BUFFER_BYTES = 1 << 29  # far beyond any cache
PASSES = 8


def read_bandwidth(device: Any) -> float:
    """Bytes a second of the fastest of several whole reads of a large buffer, with torch's current threads.

    ``device``: a torch.device.
    """
    import torch

    buffer = torch.ones(BUFFER_BYTES // 8, dtype=torch.int64, device=device)
    best = float("inf")
    for _ in range(PASSES):
        began = time.perf_counter()
        int(buffer.sum())  # waits for the device
        best = min(best, time.perf_counter() - began)
    return BUFFER_BYTES / best
