"""Experts for many tokens: products on tensor cores, of the pairs grouped by expert (``grouping.group``).

Grid (rows / BN, blocks): a block is up to BM pairs of one expert. How many blocks each expert has follows from
``starts``, and each program finds its own; there are at most pairs / BM + experts, and programs of blocks that are not
there end at once. Weights are dequantised to bf16 in registers, where they are one side of the product; the other, the
activations, comes through shared memory: (BN x BK) times (BK x BM).

gate and up are multiplied by the same program, which activates their products; down is multiplied alone, and
``grouping.combine`` adds up the experts of a token. An address of 0 stands for an expert that is computed elsewhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.kernels.experts.weights import aligned, load_bias
from strata.kernels.triton_functions import INTERPRETED, activate, overlap_launches
from strata.kernels.unpack import unpacked_int4, unpacked_mxfp4


@triton.jit
def block_of_program(starts, block, E: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr):
    """Expert of a block, or one above the last, and the place in ``order`` of its first pair and behind its last."""
    experts = tl.arange(0, BE)
    inside = experts < E
    begin = tl.load(starts + experts, mask=inside, other=0)
    count = tl.load(starts + experts + 1, mask=inside, other=0) - begin
    blocks = (count + BM - 1) // BM
    ends = tl.cumsum(blocks, 0)
    expert = tl.sum((ends <= block).to(tl.int32), 0)
    mine = experts == expert
    first = tl.sum(tl.where(mine, begin + (block - (ends - blocks)) * BM, 0), 0)
    return expert, first, tl.sum(tl.where(mine, begin + count, 0), 0)


@triton.jit
def expert_gemm_kernel(
    x,
    order,
    starts,
    addresses,
    out,
    A: tl.constexpr,
    B: tl.constexpr,
    LIMIT: tl.constexpr,
    PER_ROW: tl.constexpr,
    E: tl.constexpr,
    BE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x bf16 [pairs / PER_ROW, cols] -> out bf16 [pairs, rows]: A x, or with a B activated (A x, B x)."""
    overlap_launches(EARLY)
    expert, first, end = block_of_program(starts, tl.program_id(1), E, BE, BM)
    if expert >= E:
        return
    address = tl.load(addresses + expert)
    if address == 0:
        return
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    at = first + tl.arange(0, BM)
    there = at < end
    pairs = tl.load(order + at, mask=there, other=0)
    cols = tl.arange(0, BK)
    pointers = x + (pairs // PER_ROW).to(tl.int64)[None, :] * A.cols + cols[:, None]
    a = tl.zeros((BN, BM), tl.float32)
    b = tl.zeros((BN, BM), tl.float32)
    inside = (rows < A.rows)[:, None]
    a_steps = load_steps(address, A, rows, 0, BK, inside)
    if B is not None:
        b_steps = load_steps(address, B, rows, 0, BK, inside)
    for start in range(0, A.cols, BK):
        if A.cols % BK == 0:
            activations = tl.load(pointers + start, mask=there[None, :], other=0.0)
        else:
            activations = tl.load(pointers + start, mask=there[None, :] & (cols + start < A.cols)[:, None], other=0.0)
        a = multiply(load_tile(address, A, rows, start, BK, inside, a_steps), activations, a)
        # Those of the next columns are on their way during the product.
        a_steps = load_steps(address, A, rows, start + BK, BK, inside)
        if B is not None:
            b = multiply(load_tile(address, B, rows, start, BK, inside, b_steps), activations, b)
            b_steps = load_steps(address, B, rows, start + BK, BK, inside)
    a += load_bias(address, A, tl.minimum(rows, A.rows - 1))[:, None]
    if B is not None:
        a = activate(a, b + load_bias(address, B, tl.minimum(rows, A.rows - 1))[:, None], LIMIT)
    tl.store(
        out + pairs.to(tl.int64)[None, :] * A.rows + rows[:, None],
        a.to(out.dtype.element_ty),
        mask=there[None, :] & inside,
    )


@triton.jit
def multiply(weights, activations, acc):
    if INTERPRETED:  # where the product of bf16 is wrong
        acc = tl.dot(weights.to(tl.float32), activations.to(tl.float32), acc)
    else:
        acc = tl.dot(weights, activations, acc)
    return acc


@triton.jit
def load_steps(address, place: tl.constexpr, rows, start, BK: tl.constexpr, inside):
    """What the groups of the columns from ``start`` on are multiplied by and what is subtracted, [BN, BK / 32] each, as
    stored; 0 behind the last column."""
    GROUPS: tl.constexpr = place.cols // 32
    groups = start // 32 + tl.arange(0, BK // 32)
    at = rows[:, None] * GROUPS + groups[None, :]
    mask = inside & (groups < GROUPS)[None, :]
    steps = (tl.zeros((1, 1), tl.float32),)
    if place.kind == "int8":
        steps = (tl.load(aligned(address + place.scales, tl.float16) + at, mask=mask, other=0),)
    elif place.kind == "mxfp4":
        steps = (tl.load(aligned(address + place.scales, tl.uint8) + at, mask=mask, other=0),)
    elif place.kind == "int4":
        SUPERS: tl.constexpr = max(1, place.cols // 256)
        owner = rows[:, None] * SUPERS + tl.minimum(groups // 8, SUPERS - 1)[None, :]
        steps = (
            tl.load(aligned(address + place.scales, tl.uint8) + at, mask=mask, other=0),
            tl.load(aligned(address + place.mins, tl.uint8) + at, mask=mask, other=0),
            tl.load(aligned(address + place.super, tl.int32) + owner, mask=mask, other=0),
        )
    return steps


@triton.jit
def load_tile(address, place: tl.constexpr, rows, start, BK: tl.constexpr, inside, steps):
    """bf16 [BN, BK]: rows and the columns from ``start`` on; steps: of ``load_steps``."""
    BN: tl.constexpr = rows.shape[0]
    COLS: tl.constexpr = place.cols
    if place.kind == "bf16":
        cols = start + tl.arange(0, BK)
        pointers = aligned(address + place.codes, tl.bfloat16) + rows[:, None] * COLS + cols[None, :]
        tile = tl.load(pointers, mask=inside & (cols < COLS)[None, :], other=0.0)
    elif place.kind == "int8":
        cols = start + tl.arange(0, BK)
        pointers = aligned(address + place.codes, tl.int8) + rows[:, None] * COLS + cols[None, :]
        codes = tl.load(pointers, mask=inside & (cols < COLS)[None, :], other=0)
        codes = tl.reshape(codes.to(tl.float32), (BN, BK // 32, 32))
        tile = tl.reshape(codes * steps[0].to(tl.float32)[:, :, None], (BN, BK)).to(tl.bfloat16)
    else:
        words = start // 8 + tl.arange(0, BK // 8)
        pointers = aligned(address + place.codes, tl.int32) + rows[:, None] * (COLS // 8) + words[None, :]
        codes = tl.load(pointers, mask=inside & (words < COLS // 8)[None, :], other=0)
        if place.kind == "mxfp4":
            tile = unpacked_mxfp4(codes, steps[0])
        else:
            tile = unpacked_int4(codes, steps[0], steps[1], steps[2])
    return tile
