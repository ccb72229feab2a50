"""Device functions: which experts a step has chosen, by its pairs of token and expert, and whose slot is the coldest.

Whether an expert is chosen is not found by comparing it with all pairs: each pair writes its number where its expert's
place is in ``marks`` int32 [experts], and a mark holds if the pair that it names has that expert. So marks of earlier
steps need not be wiped.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mark_chosen(ids, mask, pair, marks_ptr):
    """Of several pairs of one expert any one stays. What reads marks comes behind a barrier."""
    tl.store(marks_ptr + ids, pair, mask=mask)


@triton.jit
def is_first(ids, mask, pair, marks_ptr):
    """Whether a pair is the one of its expert that stayed."""
    return mask & (tl.load(marks_ptr + ids, mask=mask, other=-1) == pair)


@triton.jit
def is_chosen(experts, mask, ids_ptr, pairs, marks_ptr):
    """Whether each is the expert of one of the pairs, ids int32 [pairs]."""
    pair = tl.load(marks_ptr + experts, mask=mask, other=-1)
    named = mask & (pair >= 0) & (pair < pairs)
    return named & (tl.load(ids_ptr + pair, mask=named, other=-1) == experts)


@triton.jit
def coldest(heat, free, slot, S: tl.constexpr):
    """Of the free slots the first whose heat is the lowest; S if there are none. heat: 0 or more, or -1, which come in
    the order of their bits: a warp finds the least of integers in one instruction."""
    key = tl.where(free, heat.to(tl.int32, bitcast=True), 2**31 - 1)
    return tl.min(tl.where(free & (key == tl.min(key, 0)), slot, S), 0)
