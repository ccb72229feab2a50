"""The pairs of token and expert by experts, and the sum over a token's experts: what surrounds products that read an
expert's weights once for all its tokens. Nothing is read back: what is launched depends on the number of tokens alone.

group: grid (experts,). A program counts the pairs of lower experts, which is where its own begin.
combine: grid (hidden / BN, tokens); the experts of a token are added up in the token's order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.kernels.triton_functions import overlap_launches


@triton.jit(do_not_specialize=["pairs"])
def group_kernel(ids, order, starts, pairs, BP: tl.constexpr, EARLY: tl.constexpr):
    """ids int32 [pairs] -> order int32 [pairs], the pairs of expert 0 in their order, then those of 1 ...; starts int32
    [experts + 1], where in ``order`` each expert's begin."""
    overlap_launches(EARLY)
    expert = tl.program_id(0)
    begin = tl.sum(tl.zeros((BP,), tl.int32), 0)
    count = begin
    first = 0
    while first < pairs:
        pair = first + tl.arange(0, BP)
        chosen = tl.load(ids + pair, mask=pair < pairs, other=2**31 - 1)
        begin += tl.sum((chosen < expert).to(tl.int32), 0)
        count += tl.sum((chosen == expert).to(tl.int32), 0)
        first += BP
    tl.store(starts + expert, begin)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts + expert + 1, begin + count)
    if count > 0:
        first = 0
        while first < pairs:
            pair = first + tl.arange(0, BP)
            mine = (tl.load(ids + pair, mask=pair < pairs, other=2**31 - 1) == expert).to(tl.int32)
            place = begin + tl.cumsum(mine, 0) - 1
            tl.store(order + place, pair, mask=mine > 0)
            begin += tl.sum(mine, 0)
            first += BP


@triton.jit
def combine_kernel(
    results,
    ids,
    shares,
    addresses,
    x,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """results [tokens * TOP_K, H]; x float32 [tokens, H] += the sum over k of shares * results, where the expert has an
    address."""
    overlap_launches(EARLY)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    token = tl.program_id(1).to(tl.int64)
    total = tl.zeros((BN,), tl.float32)
    for k in tl.static_range(TOP_K):
        pair = token * TOP_K + k
        here = tl.load(addresses + tl.load(ids + pair)) != 0
        result = tl.load(results + pair * H + cols, mask=(cols < H) & here, other=0.0)
        total += tl.load(shares + pair) * result.to(tl.float32)
    at = token * H + cols
    tl.store(x + at, tl.load(x + at, mask=cols < H, other=0.0) + total, mask=cols < H)
