"""4-bit codes to bf16 in registers, for products on tensor cores: two numbers in each instruction.

Eight codes of a word become four pairs of bf16; what they are multiplied with and what is added comes in bf16 as well,
once in each half of a word, so a weight is rounded as if it had been stored in bf16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.kernels.triton_functions import INTERPRETED, split_halves


@triton.jit
def unpacked_int4(words, scales, mins, supers):
    """words int32 [BN, BK / 8], scales and mins uint8 [BN, BK / 32], supers int32 of two float16 [BN, BK / 32 or 1] ->
    bf16 [BN, BK]."""
    BK: tl.constexpr = words.shape[1] * 8
    d, dmin = split_halves(supers)
    step = scales.to(tl.float32) * d
    low = 8 * step - mins.to(tl.float32) * dmin
    return _unpack(words, _per_word(_twice(step), BK), _per_word(_twice(low), BK), False)


@triton.jit
def unpacked_mxfp4(words, scales):
    """words int32 [BN, BK / 8], scales uint8 [BN, BK / 32] -> bf16 [BN, BK]."""
    # 2^(scale - 127) in bf16, where 2^-127 is subnormal
    bits = tl.where(scales == 0, 1 << 6, scales.to(tl.int32) << 7)
    return _unpack(words, _per_word(bits | (bits << 16), words.shape[1] * 8), words, True)


@triton.jit
def _twice(x):
    """float32 -> int32 with the bf16 in both halves."""
    bits = x.to(tl.bfloat16).to(tl.uint16, bitcast=True).to(tl.int32)
    return bits | (bits << 16)


@triton.jit
def _per_word(x, BK: tl.constexpr):
    """[BN, BK / 32] -> [BN, BK / 8], the same for the four words of a group."""
    BN: tl.constexpr = x.shape[0]
    return tl.reshape(tl.broadcast_to(x[:, :, None], (BN, BK // 32, 4)), (BN, BK // 8))


@triton.jit
def _unpack(words, step, low, E2M1: tl.constexpr):
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
