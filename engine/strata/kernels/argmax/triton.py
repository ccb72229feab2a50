"""The likeliest token of each row of logits on a GPU, in two launches: each row's parts, then the parts' largest.

Programs: (rows, PARTS) of which each reads its part in pieces of BLOCK logits; then one a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS = 64
BLOCK = 1024


def argmax(logits: Tensor) -> Tensor:
    """As ``reference.argmax``; of several that are alike the first. logits float32 [rows, vocab], contiguous."""
    rows, vocab = logits.shape
    largest = torch.empty(rows, PARTS, device=logits.device)
    places = torch.empty(rows, PARTS, dtype=torch.int32, device=logits.device)
    best = torch.empty(rows, dtype=torch.int64, device=logits.device)
    pieces = triton.cdiv(triton.cdiv(vocab, PARTS), BLOCK)
    part_kernel[(rows, PARTS)](logits, largest, places, vocab, PARTS=PARTS, BLOCK=BLOCK, PIECES=pieces)
    whole_kernel[(rows,)](largest, places, best, PARTS=PARTS, num_warps=1)
    return best


@triton.jit
def part_kernel(
    logits_ptr,  # [rows, vocab]
    largest_ptr,  # [rows, PARTS]
    places_ptr,  # int32 [rows, PARTS]
    vocab,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECES: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    largest, place = -float("inf"), 0
    for piece in tl.static_range(PIECES):
        begin = (part * PIECES + piece) * BLOCK
        columns = begin + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * vocab + columns, mask=columns < vocab, other=-float("inf"))
        x = tl.where(x != x, float("inf"), x)  # a NaN is the largest, and not finite either
        here, at = tl.max(x, 0, return_indices=True)
        place = tl.where(here > largest, begin + at, place)
        largest = tl.maximum(largest, here)
    tl.store(largest_ptr + row * PARTS + part, largest)
    tl.store(places_ptr + row * PARTS + part, place)


@triton.jit
def whole_kernel(
    largest_ptr,  # [rows, PARTS]
    places_ptr,  # int32 [rows, PARTS]
    best_ptr,  # int64 [rows]
    PARTS: tl.constexpr,
):
    row = tl.program_id(0)
    largest, part = tl.max(tl.load(largest_ptr + row * PARTS + tl.arange(0, PARTS)), 0, return_indices=True)
    place = tl.load(places_ptr + row * PARTS + part)
    finite = tl.abs(largest) < float("inf")
    tl.store(best_ptr + row, tl.where(finite, place, -1).to(tl.int64))
