"""Blobs copied from address to address, in plain Python, for memory of the host."""

from __future__ import annotations

import ctypes

from torch import Tensor


def gather(sources: Tensor, targets: Tensor, count: Tensor, num_bytes: int) -> None:
    """sources and targets int64 [slots], count int32 [1]: copy ``num_bytes`` from each of the first ``count`` sources
    to its target."""
    for source, target in zip(sources[: int(count)].tolist(), targets[: int(count)].tolist(), strict=True):
        ctypes.memmove(target, source, num_bytes)
