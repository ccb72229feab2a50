"""Experts for few tokens: products of rows of 8-bit activations with the blobs' matrices as they are.

gate and up: a program takes 32 rows of both, activates them and quantises the 32 results, a group of the activations
of down. Grid (intermediate / 32, pairs), a pair being one of a token's experts; or, where several pairs may have the
same expert, (intermediate / 32, experts): a program takes all pairs of an expert, ``M`` at a time.

down: a program takes a few rows for all experts of a token, in their order, and adds the sum of shares * results to
the residual stream. Grid (hidden / BN, tokens). Or, grouped as above, (hidden / BN, experts), and a result for each
pair, which ``combine`` adds up. So nothing depends on the order in which programs run.

An address of 0 stands for an expert that is computed elsewhere: its pairs add nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from strata.kernels.experts.weights import group_dots, load_activations, load_bias, load_scales, load_weights
from strata.kernels.triton_functions import activate, overlap_launches, quantize_groups


@triton.jit
def pairs_of_program(ids, order, starts, GROUPED: tl.constexpr):
    """Expert, and begin and end of its pairs in ``order`` (where not GROUPED in the order of the pairs themselves)."""
    which = tl.program_id(1)
    if GROUPED:
        expert, begin, end = which, tl.load(starts + which), tl.load(starts + which + 1)
    else:
        expert, begin, end = tl.load(ids + which), which, which + 1
    return expert, begin, end


@triton.jit
def pair_at(order, at, GROUPED: tl.constexpr):
    return tl.load(order + at) if GROUPED else at


@triton.jit
def add_products(acc, weights, activations, scale, sum_, place: tl.constexpr):
    """acc [BN, BG] + the products by groups; weights as of ``load_weights``."""
    codes, step, low = weights
    dots = group_dots(codes, activations, place)
    if place.kind == "bf16":
        acc += dots * scale
    else:
        acc += dots * (step * scale)
    if place.kind == "int4":
        acc -= low * sum_
    return acc


@triton.jit
def put(items, index: tl.constexpr, item):
    """The tuple with ``item`` at ``index``, which may be the first behind its end."""
    return items[:index] + (item,) + items[index + 1 :]


@triton.jit
def products(address, A: tl.constexpr, B: tl.constexpr, rows, codes, scales, sums, tokens, BG: tl.constexpr):
    """The ``rows`` [BN] of one matrix, or of two that are alike (B: None for one), times the rows ``tokens`` of the
    activations: for each token one float32 [BN, BG], or two, which are still to be summed up."""
    M: tl.constexpr = len(tokens)
    P: tl.constexpr = 1 if B is None else 2
    accs = (tl.zeros((rows.shape[0], BG), tl.float32),) * (M * P)
    for start in tl.static_range(0, A.cols // 32, BG):
        a = load_weights(address, A, rows, start, BG, None)
        if B is not None:
            b = load_weights(address, B, rows, start, BG, None)
        for j in tl.static_range(M):
            x = load_activations(codes, tokens[j], A, start, BG, None)
            scale = load_scales(scales, tokens[j], A, start, BG, None)
            sum_ = load_scales(sums, tokens[j], A, start, BG, None)
            accs = put(accs, j * P, add_products(accs[j * P], a, x, scale, sum_, A))
            if B is not None:
                accs = put(accs, j * P + 1, add_products(accs[j * P + 1], b, x, scale, sum_, B))
    return accs


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
    order,
    starts,
    addresses,
    out_codes,
    out_scales,
    out_sums,
    GATE: tl.constexpr,
    UP: tl.constexpr,
    LIMIT: tl.constexpr,
    TOP_K: tl.constexpr,
    GROUPED: tl.constexpr,
    M: tl.constexpr,
    BG: tl.constexpr,
    EXPERTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x as QuantizedRows [tokens, hidden] -> activations as QuantizedRows [pairs, intermediate]."""
    if EARLY:
        prefetch(addresses + tl.program_id(0) % ((EXPERTS + 15) // 16) * 16)  # all, by several programs
        gdc_wait()
        gdc_launch_dependents()  # after the wait: ``down_kernel`` reads ids and addresses before its own
    rows = tl.program_id(0) * 32 + tl.arange(0, 32)
    expert, begin, end = pairs_of_program(ids, order, starts, GROUPED)
    if begin == end:
        return
    address = tl.load(addresses + expert)
    if address == 0:
        return
    first = begin
    while first < end:
        tokens = (pair_at(order, first, GROUPED) // TOP_K,)
        for j in tl.static_range(1, M):
            tokens = put(tokens, j, pair_at(order, tl.minimum(first + j, end - 1), GROUPED) // TOP_K)
        accs = products(address, GATE, UP, rows, codes, scales, sums, tokens, BG)
        for j in tl.static_range(M):
            if first + j < end:
                pair = pair_at(order, first + j, GROUPED)
                gate = tl.sum(accs[2 * j], 1) + load_bias(address, GATE, rows)
                up = tl.sum(accs[2 * j + 1], 1) + load_bias(address, UP, rows)
                store_group(activate(gate, up, LIMIT), pair, rows, out_codes, out_scales, out_sums, GATE.rows)
        first += M


@triton.jit
def down_grouped_kernel(
    codes,
    scales,
    sums,
    order,
    starts,
    addresses,
    results,
    DOWN: tl.constexpr,
    M: tl.constexpr,
    BN: tl.constexpr,
    BG: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Activations as QuantizedRows [pairs, intermediate] -> results float32 [pairs, hidden]."""
    overlap_launches(EARLY)
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    expert, begin, end = pairs_of_program(order, order, starts, True)
    if begin == end:
        return
    address = tl.load(addresses + expert)
    if address == 0:
        return
    first = begin
    while first < end:
        pairs = (tl.load(order + first),)
        for j in tl.static_range(1, M):
            pairs = put(pairs, j, tl.load(order + tl.minimum(first + j, end - 1)))
        accs = products(address, DOWN, None, rows, codes, scales, sums, pairs, BG)
        for j in tl.static_range(M):
            if first + j < end:
                tl.store(results + pairs[j] * DOWN.rows + rows, tl.sum(accs[j], 1) + load_bias(address, DOWN, rows))
        first += M


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
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    token = tl.program_id(1)
    acc = tl.zeros((BN, BG), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for first in tl.static_range(0, PIECES, AHEAD):
        weights = (down_weights(ids, addresses, token, first, DOWN, TOP_K, CHUNKS, rows, BG),)
        for piece in tl.static_range(first + 1, min(first + AHEAD, PIECES)):
            ahead = down_weights(ids, addresses, token, piece, DOWN, TOP_K, CHUNKS, rows, BG)
            weights = put(weights, piece - first, ahead)
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


@triton.jit
def store_group(values, row, cols, out_codes, out_scales, out_sums, COLS: tl.constexpr):
    """Quantise values [32] of the columns ``cols``, which are one group."""
    codes, scale, sum_ = quantize_groups(tl.reshape(values, (1, 32)))
    tl.store(out_codes + row * COLS + cols, tl.reshape(codes, (32,)).to(tl.int8))
    at = row * (COLS // 32) + tl.program_id(0) + tl.arange(0, 1)
    tl.store(out_scales + at, scale)
    tl.store(out_sums + at, sum_)
