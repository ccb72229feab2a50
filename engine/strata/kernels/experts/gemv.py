"""Experts for few tokens: products of rows of 8-bit activations with the blobs' matrices as they are.

gate and up: a program takes INNER rows of both for a pair of token and expert, activates them and quantises the
results, a group of the activations of down. Grid (pairs, intermediate / INNER).

down: a program takes a few rows for all experts of a token, in their order, and adds the sum of shares * results to
the residual stream. Grid (tokens, hidden / DOWN_ROWS). So nothing depends on the order in which programs run.

Programs that lie next to each other in the grid take the same rows: where tokens have the same expert, its weights are
read from memory once and from the L2 cache by the others.

An address of 0 stands for an expert that is computed elsewhere: its pairs add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from strata.kernels import launch
from strata.kernels.experts.place import Experts
from strata.kernels.experts.weights import add_products, load_activations, load_bias, load_scales, load_weights
from strata.kernels.rows import QuantizedRows
from strata.kernels.triton_functions import activate, overlap_launches, quantize_groups

INNER = 16  # activations of down that share a scale: half as many as weights, or too few programs would compute them
WARPS = 4
LANES = {"int4": 16, "mxfp4": 16, "int8": 32, "bf16": 32}  # of a row that a program takes at once
DOWN_ROWS = 8
# Pieces of down's weights that are loaded before they are used: as many as registers hold, eight for a piece of int4.
PIECES_AHEAD = {"int4": 16, "mxfp4": 16, "int8": 8, "bf16": 8}


@dataclass(frozen=True, slots=True)
class Inner:
    """Activations of down as ``QuantizedRows``, but in groups of INNER: codes int8 [pairs, intermediate]; scales and
    sums float32 [pairs, intermediate / INNER]."""

    codes: Tensor
    scales: Tensor
    sums: Tensor


def gate_up(experts: Experts, ids: Tensor, rows: QuantizedRows) -> Inner:
    """The tokens' rows [tokens, hidden] -> the activations of each pair."""
    pairs, gate = ids.numel(), experts.gate
    out = Inner(
        torch.empty(pairs, gate.rows, dtype=torch.int8, device=ids.device),
        *torch.empty(2, pairs, gate.rows // INNER, device=ids.device),
    )
    gate_up_kernel[(pairs, gate.rows // INNER)](
        rows.codes, rows.scales, rows.sums, ids, experts.addresses, out.codes, out.scales, out.sums,
        GATE=gate, UP=experts.up, LIMIT=experts.limit, TOP_K=ids.shape[1], EXPERTS=experts.count,
        BN=INNER, L=LANES[gate.kind], num_warps=WARPS, **launch.early(),
    )  # fmt: skip
    return out


def down_add(experts: Experts, ids: Tensor, shares: Tensor, inner: Inner, x: Tensor) -> Tensor:
    """x [tokens, hidden] += the sum of shares * down(inner)."""
    tokens, top_k = ids.shape
    down = experts.down
    down_kernel[(tokens, down.rows // DOWN_ROWS)](
        inner.codes, inner.scales, inner.sums, ids, shares, experts.addresses, x,
        DOWN=down, TOP_K=top_k, INNER=INNER, BN=DOWN_ROWS, L=LANES[down.kind],
        AHEAD=PIECES_AHEAD[down.kind], num_warps=WARPS, **launch.early(),
    )  # fmt: skip
    return x


@triton.jit
def prefetch(pointer):
    """Bring the line at ``pointer`` into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointer], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def gate_up_kernel(
    codes_ptr,  # int8 [tokens, hidden]
    scales_ptr,  # float32 [tokens, hidden / 32], as the next
    sums_ptr,
    ids_ptr,  # int32 [pairs]
    addresses_ptr,  # int64 [EXPERTS]
    out_codes_ptr,  # int8 [pairs, intermediate]
    out_scales_ptr,  # float32 [pairs, intermediate / BN], as the next
    out_sums_ptr,
    GATE: tl.constexpr,
    UP: tl.constexpr,
    LIMIT: tl.constexpr,
    TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    BN: tl.constexpr,
    L: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        prefetch(addresses_ptr + tl.program_id(1) % ((EXPERTS + 15) // 16) * 16)
        gdc_wait()
        gdc_launch_dependents()  # after the wait: ``down_kernel`` reads ids and addresses before its own
    pair = tl.program_id(0)
    address = tl.load(addresses_ptr + tl.load(ids_ptr + pair))
    if address == 0:
        return
    rows = tl.program_id(1) * BN + tl.arange(0, BN)
    token = pair // TOP_K
    gate = tl.zeros((BN, L), tl.float32)
    up = tl.zeros((BN, L), tl.float32)
    for start in tl.static_range(0, GATE.cols // GATE.lane, L):
        gate_weights = load_weights(address, GATE, rows, start, L, None)
        up_weights = load_weights(address, UP, rows, start, L, None)
        x = load_activations(codes_ptr, token, GATE, start, L, None)
        scales = load_scales(scales_ptr, token, GATE, start, L, 32, None)
        sums = load_scales(sums_ptr, token, GATE, start, L, 32, None)
        gate = add_products(gate, gate_weights, x, scales, sums, GATE)
        up = add_products(up, up_weights, x, scales, sums, UP)
    gate = tl.sum(gate, 1) + load_bias(address, GATE, rows)
    up = tl.sum(up, 1) + load_bias(address, UP, rows)
    codes, scale, sum_ = quantize_groups(tl.reshape(activate(gate, up, LIMIT), (1, BN)))
    tl.store(out_codes_ptr + pair * GATE.rows + rows[None, :], codes.to(tl.int8))
    at = pair * (GATE.rows // BN) + tl.program_id(1) + tl.arange(0, 1)
    tl.store(out_scales_ptr + at, scale)
    tl.store(out_sums_ptr + at, sum_)


@triton.jit
def down_kernel(
    codes_ptr,  # int8 [pairs, intermediate]
    scales_ptr,  # float32 [pairs, intermediate / INNER], as the next
    sums_ptr,
    ids_ptr,  # int32 [pairs]
    shares_ptr,  # float32 [pairs]
    addresses_ptr,  # int64 [experts]
    x_ptr,  # float32 [tokens, hidden]
    DOWN: tl.constexpr,
    TOP_K: tl.constexpr,
    INNER: tl.constexpr,
    BN: tl.constexpr,
    L: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program loads the weights of AHEAD pieces (L lanes of one expert) before it multiplies them, and the first
    ones before ``gate_up_kernel`` has ended: ids, shares and addresses are older."""
    CHUNKS: tl.constexpr = (DOWN.cols // DOWN.lane + L - 1) // L
    PIECES: tl.constexpr = TOP_K * CHUNKS
    rows = tl.program_id(1) * BN + tl.arange(0, BN)
    token = tl.program_id(0)
    acc = tl.zeros((BN, L), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for first in tl.static_range(0, PIECES, AHEAD):
        weights = (down_weights(ids_ptr, addresses_ptr, token, first, DOWN, TOP_K, CHUNKS, rows, L),)
        for piece in tl.static_range(first + 1, min(first + AHEAD, PIECES)):
            ahead = down_weights(ids_ptr, addresses_ptr, token, piece, DOWN, TOP_K, CHUNKS, rows, L)
            weights = weights + (ahead,)
        if first == 0:
            overlap_launches(EARLY)
        for piece in tl.static_range(first, min(first + AHEAD, PIECES)):
            pair = token * TOP_K + piece // CHUNKS
            start = piece % CHUNKS * L
            here = tl.load(addresses_ptr + tl.load(ids_ptr + pair)) != 0
            inner = load_activations(codes_ptr, pair, DOWN, start, L, here)
            scales = load_scales(scales_ptr, pair, DOWN, start, L, INNER, here)
            sums = load_scales(sums_ptr, pair, DOWN, start, L, INNER, here)
            own = add_products(tl.zeros_like(acc), weights[piece - first], inner, scales, sums, DOWN)
            acc += tl.load(shares_ptr + pair) * own
    if DOWN.bias >= 0:
        for k in tl.static_range(TOP_K):
            pair = token * TOP_K + k
            address = tl.load(addresses_ptr + tl.load(ids_ptr + pair))
            if address != 0:
                total += tl.load(shares_ptr + pair) * load_bias(address, DOWN, rows)
    at = token * DOWN.rows + rows
    tl.store(x_ptr + at, tl.load(x_ptr + at) + (tl.sum(acc, 1) + total))


@triton.jit
def down_weights(
    ids_ptr,
    addresses_ptr,
    token,
    piece: tl.constexpr,
    DOWN: tl.constexpr,
    TOP_K: tl.constexpr,
    CHUNKS: tl.constexpr,
    rows,
    L: tl.constexpr,
):
    address = tl.load(addresses_ptr + tl.load(ids_ptr + token * TOP_K + piece // CHUNKS))
    return load_weights(address, DOWN, rows, piece % CHUNKS * L, L, address != 0)
