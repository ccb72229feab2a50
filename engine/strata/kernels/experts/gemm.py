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
from strata.kernels.triton_functions import INTERPRETED, activate, overlap_launches, split_halves


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
            # 2^(scale - 127) in bf16, where 2^-127 is subnormal
            bits = tl.where(steps[0] == 0, 1 << 6, steps[0].to(tl.int32) << 7)
            tile = unpack(codes, per_word(bits | (bits << 16), BK), codes, True)
        else:
            d, dmin = split_halves(steps[2])
            step = twice(steps[0].to(tl.float32) * d)
            low = twice(8 * steps[0].to(tl.float32) * d - steps[1].to(tl.float32) * dmin)
            tile = unpack(codes, per_word(step, BK), per_word(low, BK), False)
    return tile


@triton.jit
def twice(x):
    """float32 -> int32 with the bf16 in both halves."""
    bits = x.to(tl.bfloat16).to(tl.uint16, bitcast=True).to(tl.int32)
    return bits | (bits << 16)


@triton.jit
def per_word(x, BK: tl.constexpr):
    """[BN, BK / 32] -> [BN, BK / 8], the same for the four words of a group."""
    BN: tl.constexpr = x.shape[0]
    return tl.reshape(tl.broadcast_to(x[:, :, None], (BN, BK // 32, 4)), (BN, BK // 8))


@triton.jit
def unpack(words, step, low, E2M1: tl.constexpr):
    """words [BN, BK / 8] of eight codes; step and low int32, bf16 in both halves -> bf16 [BN, BK]: step * number for
    E2M1, else step * (code - 8) + low, where low is small, so that little is lost when it is rounded."""
    BN: tl.constexpr = words.shape[0]
    BK: tl.constexpr = words.shape[1] * 8
    if INTERPRETED:
        place = tl.arange(0, 8)
        shift = tl.where(place < 4, place * 8, place * 8 - 28)
        codes = (words[:, :, None] >> shift[None, None, :]) & 15
        factor = (step << 16).to(tl.float32, bitcast=True)[:, :, None]
        if E2M1:
            number = ((codes & 7) << 22 | (codes & 8) << 28).to(tl.float32, bitcast=True) * 2.0**126
            out = number * factor
        else:
            out = (codes - 8).to(tl.float32) * factor + (low << 16).to(tl.float32, bitcast=True)[:, :, None]
        tile = tl.reshape(out.to(tl.bfloat16), (BN, BK))
    else:
        c = _unpack_e2m1(words, step) if E2M1 else _unpack_int4(words, step, low)
        even = tl.join(tl.join(c[0], c[4]), tl.join(c[2], c[6]))
        odd = tl.join(tl.join(c[1], c[5]), tl.join(c[3], c[7]))
        tile = tl.reshape(tl.join(even, odd), (BN, BK))
    return tile


@triton.jit
def _unpack_int4(words, step, low):
    # 0x4300 | code is 128 + code in bf16, and taking 136 off is exact.
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 low, high, a, b, c, d, one, minus;
        mov.b32 one, 0x3f803f80;
        mov.b32 minus, 0xc308c308;
        and.b32 low, $8, 0x0f0f0f0f;
        shr.u32 high, $8, 4;
        and.b32 high, high, 0x0f0f0f0f;
        prmt.b32 a, low, 0x43434343, 0x4140;
        prmt.b32 b, low, 0x43434343, 0x4342;
        prmt.b32 c, high, 0x43434343, 0x4140;
        prmt.b32 d, high, 0x43434343, 0x4342;
        fma.rn.bf16x2 a, a, one, minus;
        fma.rn.bf16x2 b, b, one, minus;
        fma.rn.bf16x2 c, c, one, minus;
        fma.rn.bf16x2 d, d, one, minus;
        fma.rn.bf16x2 a, a, $9, $10;
        fma.rn.bf16x2 b, b, $9, $10;
        fma.rn.bf16x2 c, c, $9, $10;
        fma.rn.bf16x2 d, d, $9, $10;
        mov.b32 {$0, $1}, a;
        mov.b32 {$2, $3}, b;
        mov.b32 {$4, $5}, c;
        mov.b32 {$6, $7}, d;
        }""",
        "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r",
        [words, step, low],
        (tl.bfloat16,) * 8,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _unpack_e2m1(words, step):
    # Sign, exponent and mantissa in the places that they have in bf16 make a number that is 2^126 times too small.
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, c, d, s, large, none;
        mov.b32 large, 0x7e807e80;
        mov.b32 none, 0x80008000;
        prmt.b32 a, $8, 0, 0x4140;
        prmt.b32 b, $8, 0, 0x4342;
        shl.b32 c, a, 8;
        shl.b32 d, b, 8;
        shl.b32 s, a, 6;
        shl.b32 a, a, 12;
        lop3.b32 a, a, 0x80008000, 0, 0xc0;
        lop3.b32 a, s, 0x01c001c0, a, 0xea;
        shl.b32 s, b, 6;
        shl.b32 b, b, 12;
        lop3.b32 b, b, 0x80008000, 0, 0xc0;
        lop3.b32 b, s, 0x01c001c0, b, 0xea;
        shr.u32 s, c, 6;
        lop3.b32 c, c, 0x80008000, 0, 0xc0;
        lop3.b32 c, s, 0x01c001c0, c, 0xea;
        shr.u32 s, d, 6;
        lop3.b32 d, d, 0x80008000, 0, 0xc0;
        lop3.b32 d, s, 0x01c001c0, d, 0xea;
        fma.rn.bf16x2 a, a, large, none;
        fma.rn.bf16x2 b, b, large, none;
        fma.rn.bf16x2 c, c, large, none;
        fma.rn.bf16x2 d, d, large, none;
        fma.rn.bf16x2 a, a, $9, none;
        fma.rn.bf16x2 b, b, $9, none;
        fma.rn.bf16x2 c, c, $9, none;
        fma.rn.bf16x2 d, d, $9, none;
        mov.b32 {$0, $1}, a;
        mov.b32 {$2, $3}, b;
        mov.b32 {$4, $5}, c;
        mov.b32 {$6, $7}, d;
        }""",
        "=h,=h,=h,=h,=h,=h,=h,=h,r,r",
        [words, step],
        (tl.bfloat16,) * 8,
        is_pure=True,
        pack=1,
    )
