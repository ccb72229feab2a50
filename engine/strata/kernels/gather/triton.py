"""Blobs copied from address to address on an NVIDIA GPU: from pinned host memory into slots of VRAM, above all.

How many there are is read on the device, so that a CUDA graph may hold the launch. Grid (PROGRAMS,), whatever there is
to copy: program p takes the pieces p, p + PROGRAMS ... of all blobs, 16 bytes a lane and load, eight loads at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# H200 on PCIe 5.0 x16, blobs of 2.7 MB from pinned host memory, 2026-11-30: 64 blobs 50.8 GB/s (one large copy of the
# copy engine: 54.9), 8 blobs 48.3, one 33.2; more programs or larger pieces change 1 % or less.
PROGRAMS, WARPS = 24, 4
WORDS = 4096  # of 4 bytes, that a program copies at once


def gather(sources: Tensor, targets: Tensor, count: Tensor, num_bytes: int) -> None:
    """As ``reference.gather``, for addresses that kernels of this device may read or write. ``num_bytes``, sources and
    targets: multiples of 16; no target may overlap a source."""
    assert num_bytes % 16 == 0, f"blobs of {num_bytes} bytes are not of whole 16 bytes"
    gather_kernel[(PROGRAMS,)](sources, targets, count, WORDS_OF_BLOB=num_bytes // 4, BLOCK=WORDS, num_warps=WARPS)


@triton.jit
def gather_kernel(
    sources_ptr,  # int64 [slots]
    targets_ptr,  # int64 [slots]
    count_ptr,  # int32 [1]
    WORDS_OF_BLOB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    PIECES: tl.constexpr = (WORDS_OF_BLOB + BLOCK - 1) // BLOCK
    end = tl.load(count_ptr) * PIECES
    piece = tl.program_id(0)
    while piece < end:
        source = tl.load(sources_ptr + piece // PIECES).to(tl.pointer_type(tl.int32))
        target = tl.load(targets_ptr + piece // PIECES).to(tl.pointer_type(tl.int32))
        words = piece % PIECES * BLOCK + tl.arange(0, BLOCK)
        inside = words < WORDS_OF_BLOB
        loaded = tl.load(tl.multiple_of(source, 16) + words, mask=inside)
        tl.store(tl.multiple_of(target, 16) + words, loaded, mask=inside)
        piece += tl.num_programs(0)
