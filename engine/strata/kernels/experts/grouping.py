"""The pairs of token and expert by experts, and the sum over a token's experts: what surrounds products that read an
expert's weights once for all its tokens. Nothing is read back: what is launched depends on the number of tokens alone.

group: grid (experts,). A program counts the pairs of lower experts, which is where its own begin.
combine: grid (hidden / BN, tokens); the experts of a token are added up in the token's order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.triton_functions import overlap_launches

COMBINE_COLS = 1024  # that a program adds up


@dataclass(frozen=True, slots=True)
class Grouped:
    """order int32 [pairs]: the pairs of expert 0 in their order, then those of 1 ...; starts int32 [experts + 1]: where
    in it each expert's begin. A pair is token * top_k + k."""

    order: Tensor
    starts: Tensor


def group(ids: Tensor, num_experts: int) -> Grouped:
    """ids int32 [tokens, top_k]."""
    pairs = ids.numel()
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=ids.device)
    block = min(max(triton.next_power_of_2(pairs), 128), 4096)
    group_kernel[(num_experts,)](ids, order, starts, pairs, BP=block, num_warps=4, **launch.early())
    return Grouped(order, starts)


def combine(results: Tensor, ids: Tensor, shares: Tensor, addresses: Tensor, x: Tensor) -> Tensor:
    """results [tokens * top_k, hidden]; x += the sum of shares * results."""
    tokens, hidden = x.shape
    combine_kernel[(triton.cdiv(hidden, COMBINE_COLS), tokens)](
        results,
        ids,
        shares,
        addresses,
        x,
        H=hidden,
        TOP_K=ids.shape[1],
        BN=COMBINE_COLS,
        num_warps=4,
        **launch.early(),
    )
    return x


@triton.jit(do_not_specialize=["pairs"])
def group_kernel(ids, order, starts, pairs, BP: tl.constexpr, EARLY: tl.constexpr):
    """``pairs``: how many."""
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
    """As ``combine``; experts without an address have no results."""
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
