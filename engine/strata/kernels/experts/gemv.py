"""Experts for few tokens: products of rows of 8-bit activations with the blobs' matrices as they are.

gate and up: a program takes 32 rows of both for a pair, which is one of a token's experts, activates them and quantises
the 32 results, a group of the activations of down. Grid (pairs, intermediate / 32).

down: a program takes a few rows for all experts of a token, in their order, and adds the sum of shares * results to
the residual stream. Grid (tokens, hidden / BN). So nothing depends on the order in which programs run.

Programs that lie next to each other in the grid take the same rows: where tokens have the same expert, its weights are
read from memory once, and from the L2 cache by the others.

An address of 0 stands for an expert that is computed elsewhere: its pairs add nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from strata.kernels.experts.weights import group_dots, load_activations, load_bias, load_scales, load_weights
from strata.kernels.triton_functions import activate, overlap_launches, quantize_groups


@triton.jit
def no_products(BN: tl.constexpr, BG: tl.constexpr, place: tl.constexpr):
    """float32 [BN, BG], one sum a group; bf16 has one a column, [BN, BG * 32]: its weights come one to a lane, and
    stay there."""
    return tl.zeros((BN, BG * 32 if place.kind == "bf16" else BG), tl.float32)


@triton.jit
def add_products(acc, weights, activations, scale, sum_, place: tl.constexpr):
    """acc of ``no_products`` + the products by groups; weights as of ``load_weights``."""
    codes, step, low = weights
    if place.kind == "bf16":
        acc += codes.to(tl.float32) * (activations * scale)
    else:
        acc += group_dots(codes, activations, place) * (step * scale)
    if place.kind == "int4":
        acc -= low * sum_
    return acc


@triton.jit
def prefetch(pointer):
    """Bring the line at ``pointer`` into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointer], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def gate_up_kernel(
    codes,
    scales,
    sums,
    ids,
    addresses,
    out_codes,
    out_scales,
    out_sums,
    GATE: tl.constexpr,
    UP: tl.constexpr,
    LIMIT: tl.constexpr,
    TOP_K: tl.constexpr,
    BG: tl.constexpr,
    EXPERTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x as QuantizedRows [tokens, hidden] -> activations as QuantizedRows [pairs, intermediate]."""
    if EARLY:
        prefetch(addresses + tl.program_id(1) % ((EXPERTS + 15) // 16) * 16)  # all, by several programs
        gdc_wait()
        gdc_launch_dependents()  # after the wait: ``down_kernel`` reads ids and addresses before its own
    pair = tl.program_id(0)
    address = tl.load(addresses + tl.load(ids + pair))
    if address == 0:
        return
    rows = tl.program_id(1) * 32 + tl.arange(0, 32)
    token = pair // TOP_K
    gate = no_products(32, BG, GATE)
    up = no_products(32, BG, UP)
    for start in tl.static_range(0, GATE.cols // 32, BG):
        gate_weights = load_weights(address, GATE, rows, start, BG, None)
        up_weights = load_weights(address, UP, rows, start, BG, None)
        x = load_activations(codes, token, GATE, start, BG, None)
        scale = load_scales(scales, token, GATE, start, BG, None)
        sum_ = load_scales(sums, token, GATE, start, BG, None)
        gate = add_products(gate, gate_weights, x, scale, sum_, GATE)
        up = add_products(up, up_weights, x, scale, sum_, UP)
    gate = tl.sum(gate, 1) + load_bias(address, GATE, rows)
    up = tl.sum(up, 1) + load_bias(address, UP, rows)
    codes_, scale, sum_ = quantize_groups(tl.reshape(activate(gate, up, LIMIT), (1, 32)))
    tl.store(out_codes + pair * GATE.rows + rows, tl.reshape(codes_, (32,)).to(tl.int8))
    at = pair * (GATE.rows // 32) + tl.program_id(1) + tl.arange(0, 1)
    tl.store(out_scales + at, scale)
    tl.store(out_sums + at, sum_)


@triton.jit
def down_kernel(
    codes,
    scales,
    sums,
    ids,
    shares,
    addresses,
    x,
    DOWN: tl.constexpr,
    TOP_K: tl.constexpr,
    BN: tl.constexpr,
    BG: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Activations as QuantizedRows [pairs, intermediate]; x float32 [tokens, hidden] += the sum of shares * experts.

    Each program loads weights of AHEAD pieces (BG groups of one expert) before it multiplies them, and the first of
    them before ``gate_up`` has ended: ids, shares and addresses are older.
    """
    CHUNKS: tl.constexpr = (DOWN.cols // 32 + BG - 1) // BG
    PIECES: tl.constexpr = TOP_K * CHUNKS
    rows = tl.program_id(1) * BN + tl.arange(0, BN)
    token = tl.program_id(0)
    acc = no_products(BN, BG, DOWN)
    total = tl.zeros((BN,), tl.float32)
    for first in tl.static_range(0, PIECES, AHEAD):
        weights = (down_weights(ids, addresses, token, first, DOWN, TOP_K, CHUNKS, rows, BG),)
        for piece in tl.static_range(first + 1, min(first + AHEAD, PIECES)):
            ahead = down_weights(ids, addresses, token, piece, DOWN, TOP_K, CHUNKS, rows, BG)
            weights = weights + (ahead,)
        if first == 0:
            overlap_launches(EARLY)
        for piece in tl.static_range(first, min(first + AHEAD, PIECES)):
            pair = token * TOP_K + piece // CHUNKS
            start = piece % CHUNKS * BG
            here = tl.load(addresses + tl.load(ids + pair)) != 0
            share = tl.load(shares + pair)
            x_ = load_activations(codes, pair, DOWN, start, BG, here)
            scale = load_scales(scales, pair, DOWN, start, BG, here) * share
            sum_ = load_scales(sums, pair, DOWN, start, BG, here) * share
            acc = add_products(acc, weights[piece - first], x_, scale, sum_, DOWN)
    if DOWN.bias >= 0:
        for k in tl.static_range(TOP_K):
            pair = token * TOP_K + k
            address = tl.load(addresses + tl.load(ids + pair))
            if address != 0:
                total += tl.load(shares + pair) * load_bias(address, DOWN, rows)
    at = token * DOWN.rows + rows
    tl.store(x + at, tl.load(x + at) + (tl.sum(acc, 1) + total))


@triton.jit
def down_weights(
    ids,
    addresses,
    token,
    piece: tl.constexpr,
    DOWN: tl.constexpr,
    TOP_K: tl.constexpr,
    CHUNKS: tl.constexpr,
    rows,
    BG: tl.constexpr,
):
    address = tl.load(addresses + tl.load(ids + token * TOP_K + piece // CHUNKS))
    return load_weights(address, DOWN, rows, piece % CHUNKS * BG, BG, address != 0)
