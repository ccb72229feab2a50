"""Device functions of the attention kernels. Scores are in base 2: queries come times log2(e) / sqrt(head_dim)."""

from __future__ import annotations

import triton
import triton.language as tl

from strata.kernels.triton_functions import INTERPRETED

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def rotated(
    heads_ptr, rows, present, dims, weight_ptr, cos_ptr, sin_ptr, eps, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr
):
    """Heads number ``rows`` [n] of one token, normalised where there is a weight, their first ROTARY_DIM dimensions
    then turned to its position: float32 [n, dims]; 0 where not ``present`` or past the head."""
    inside, turned = dims < HEAD_DIM, dims < ROTARY_DIM
    mask = present[:, None] & inside[None, :]
    partner = tl.where(turned, (dims + ROTARY_DIM // 2) % ROTARY_DIM, dims)
    at = heads_ptr + rows[:, None] * HEAD_DIM
    mine = tl.load(at + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(at + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if weight_ptr is not None:
        inverse = tl.rsqrt(tl.sum(mine * mine, 1) / HEAD_DIM + eps)
        mine *= inverse[:, None] * tl.load(weight_ptr + dims, mask=inside, other=0.0)[None, :]
        other *= inverse[:, None] * tl.load(weight_ptr + partner, mask=inside, other=0.0)[None, :]
    cos = tl.load(cos_ptr + dims, mask=turned, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + dims, mask=turned, other=0.0).to(tl.float32)
    return mine * cos[None, :] + other * sin[None, :]


@triton.jit
def opened(out, gates_ptr, mask):
    """out * sigmoid of the bf16 gates at the pointers, where ``mask``."""
    return out / (1 + tl.exp(-tl.load(gates_ptr, mask=mask, other=0.0).to(tl.float32)))


@triton.jit
def product(a, b, start):
    """start + a @ b of bf16, in float32."""
    if INTERPRETED:  # its products of bf16 are garbage
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc=start)
    return tl.dot(a, b, acc=start)


@triton.jit
def attend(query, key, value, seen, top, total, out):
    """Take a tile of keys and values [positions, dims] into a softmax that is under way: of each query row the highest
    score, the sum of the weights and that of the weighted values. ``seen``: [rows or 1, positions], or None for all."""
    scores = product(query, tl.trans(key), tl.zeros((query.shape[0], key.shape[0]), tl.float32))
    if seen is not None:
        scores = tl.where(seen, scores, -float("inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + tl.sum(weights, 1)
    return higher, total, product(weights.to(tl.bfloat16), value, out * fade[:, None])


@triton.jit
def block_numbers(table_ptr, start, stop, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Numbers of the KV blocks of the positions from ``start``, as far as these come before ``stop``."""
    t = start + tl.arange(0, TILE)
    return tl.load(table_ptr + t // BLOCK_SIZE, mask=t < stop, other=0)
