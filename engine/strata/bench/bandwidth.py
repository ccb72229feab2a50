"""What a device can do at most: how fast it reads its memory, the bound of decoding; how fast it multiplies, that of
prefill."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

BUFFER_BYTES = 1 << 29  # far beyond any cache of a CPU
CARD_BUFFER_BYTES = 1 << 31  # half a millisecond of an H200: what a launch takes is nothing beside it
MATRIX = 8192  # rows and columns of the product, on a card
CPU_MATRIX = 1024
PASSES = 8


def read_bandwidth(device: Any) -> float:
    """Bytes a second of the fastest of several whole reads of a large buffer, with torch's current threads.

    ``device``: a torch.device.
    """
    import torch

    num_bytes = BUFFER_BYTES
    if device.type == "cuda":
        num_bytes = min(CARD_BUFFER_BYTES, torch.cuda.mem_get_info(device)[0] // 2)
    buffer = torch.ones(num_bytes // 8, dtype=torch.int64, device=device)
    return num_bytes / _fastest(buffer.sum, device)


def multiply_rate(device: Any) -> float:
    """Multiplications and additions a second of the fastest of several products of large bf16 matrices."""
    import torch

    size = MATRIX if device.type == "cuda" else CPU_MATRIX
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return float(2 * size**3 / _fastest(lambda: left @ right, device))


def _fastest(work: Callable[[], Any], device: Any) -> float:
    """Seconds."""
    best = float("inf")
    for _ in range(PASSES):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best
