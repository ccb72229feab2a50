"""Norm, router and choice of the experts on an NVIDIA GPU.

For few tokens two launches:

score: grid (experts / BE + 1, tokens). A program takes BE rows of the router for one token; the factor of the norm is
the same for all columns, so it is multiplied to the finished products. The last program of a token quantises its normed
row for the experts.

choose: grid (tokens,), one warp each: softmax and top-k over the scores. The largest score is found as the largest of
integers in the same order, which a warp does in one instruction; of equal scores the lower id comes first.

For many tokens the scores are a product on tensor cores.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.dequantize.reference import dequantize
from strata.kernels.experts.blobs import MAX_FEW
from strata.kernels.layer import Router, Scored
from strata.kernels.matrix import Matrix, Norm
from strata.kernels.rms_norm.triton import norm_rows
from strata.kernels.rows import QuantizedRows, empty_rows
from strata.kernels.triton_functions import overlap_launches, store_groups

SCORE_ROWS, SCORE_WARPS = 2, 8  # of the router that a program takes, and its warps


def prepare(norm: Norm, router: Matrix, top_k: int, normalize: bool, max_few: int = MAX_FEW) -> Router:
    """x float32 [tokens, hidden] -> ids int32, shares float32 and norm(x): ``QuantizedRows`` of up to ``max_few``
    tokens, bf16 of more."""
    weight = dequantize(router.kind, router.parts, torch.bfloat16).contiguous()
    norm_weight = norm.weight.float().contiguous()
    bias = None if router.bias is None else router.bias.float()

    def score_any(x: Tensor) -> Scored:
        if x.shape[0] <= max_few:
            return Scored(*score(x, norm_weight, norm.eps, weight, bias))
        inner = norm_rows(x, norm_weight, norm.eps)
        logits = torch.mm(inner, weight.T, out_dtype=torch.float32)
        return Scored(logits if bias is None else logits + bias, inner)

    return Router(score_any, partial(choose, top_k=top_k, normalize=normalize), normalize)


def score(
    x: Tensor, norm_weight: Tensor, eps: float, router: Tensor, bias: Tensor | None
) -> tuple[Tensor, QuantizedRows]:
    """x float32 [tokens, hidden], router [experts, hidden], bias [experts] -> logits float32 [tokens, experts] and
    norm(x)."""
    tokens, hidden = x.shape
    experts = router.shape[0]
    logits = torch.empty(tokens, experts, device=x.device)
    rows = empty_rows(tokens, hidden, x.device)
    score_kernel[(triton.cdiv(experts, SCORE_ROWS) + 1, tokens)](
        x,
        norm_weight,
        router,
        bias,
        logits,
        rows.codes,
        rows.scales,
        rows.sums,
        eps,
        H=hidden,
        E=experts,
        BE=SCORE_ROWS,
        BH=triton.next_power_of_2(hidden),
        num_warps=SCORE_WARPS,
        **launch.early(),
    )
    return logits, rows


def choose(logits: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits float32 [tokens, experts] -> ids int32 [tokens, top_k], likeliest first, and shares float32 [tokens,
    top_k]; ``normalize``: see ``reference``."""
    tokens, experts = logits.shape
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    shares = torch.empty(tokens, top_k, device=logits.device)
    choose_kernel[(tokens,)](
        logits,
        ids,
        shares,
        E=experts,
        TOP_K=top_k,
        NORMALIZE=normalize,
        BE=triton.next_power_of_2(experts),
        num_warps=1,
        **launch.early(),
    )
    return ids, shares


@triton.jit
def score_kernel(
    x,
    norm_weight,
    router,
    bias,
    logits,
    codes,
    scales,
    sums,
    eps,
    H: tl.constexpr,
    E: tl.constexpr,
    BE: tl.constexpr,
    BH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """As ``score`` says; the last three pointers are those of norm(x)."""
    token = tl.program_id(1)
    first = tl.program_id(0) * BE
    if first < E:
        cols = tl.arange(0, BH)
        experts = first + tl.arange(0, BE)
        inside = (cols < H)[None, :] & (experts < E)[:, None]
        weights = tl.load(router + experts[:, None] * H + cols[None, :], mask=inside, other=0).to(tl.float32)
        weights *= tl.load(norm_weight + cols, mask=cols < H, other=0).to(tl.float32)[None, :]
        overlap_launches(EARLY)
        row = tl.load(x + token * H + cols, mask=cols < H, other=0.0)
        factor = 1.0 / tl.sqrt(tl.sum(row * row, 0) / H + eps)
        result = tl.sum(weights * row[None, :], 1) * factor
        if bias is not None:
            result += tl.load(bias + experts, mask=experts < E, other=0).to(tl.float32)
        tl.store(logits + token * E + experts, result, mask=experts < E)
    else:
        groups = tl.arange(0, BH // 32)
        at = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
        factors = tl.load(norm_weight + at, mask=at < H, other=0).to(tl.float32)
        overlap_launches(EARLY)
        values = tl.load(x + token * H + at, mask=at < H, other=0.0)
        factors *= 1.0 / tl.sqrt(tl.sum(tl.sum(values * values, 1), 0) / H + eps)
        line = token * (H // 32)
        store_groups(values * factors, codes + token * H, scales + line, sums + line, groups, groups < H // 32)


@triton.jit
def choose_kernel(
    logits,
    ids,
    shares,
    E: tl.constexpr,
    TOP_K: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """logits float32 [tokens, E] -> ids int32 [tokens, TOP_K], shares float32 [tokens, TOP_K]; see ``reference``."""
    overlap_launches(EARLY)
    token = tl.program_id(0)
    experts = tl.arange(0, BE)
    values = tl.load(logits + token * E + experts, mask=experts < E, other=float("-inf"))
    values = tl.where(values == values, values, float("-inf")) + 0.0  # no NaN, which is above all; 0.0 for -0.0
    bits = values.to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = tl.where(experts < E, keys, -(2**31))
    top = tl.max(values, 0)
    likelihoods = tl.exp(values - top)
    total = tl.sum(likelihoods, 0)
    chosen = tl.zeros((BE,), tl.int32) - 1  # the place of each expert among the chosen
    for k in tl.static_range(TOP_K):
        best = tl.max(keys, 0)
        expert = tl.min(tl.where((keys == best) & (chosen < 0), experts, BE), 0)
        chosen = tl.where(experts == expert, k, chosen)
        keys = tl.where(experts == expert, -(2**31), keys)
    if NORMALIZE:
        total = tl.sum(tl.where(chosen >= 0, likelihoods, 0.0), 0)
    tl.store(ids + token * TOP_K + chosen, experts, mask=chosen >= 0)
    tl.store(shares + token * TOP_K + chosen, likelihoods / total, mask=chosen >= 0)
