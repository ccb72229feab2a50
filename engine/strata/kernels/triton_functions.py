"""Device functions that Triton kernels of several operations share.

W4A8 in this form: a group of 32 weights, 16 bytes as four words of eight nibbles, against 32 int8 activations as four
pairs of words. A pair is loaded as one int64, so both sides arrive in 16-byte loads and in the same order.

The tests run these without a GPU through Triton's interpreter, which knows no inline assembly: there the same dot
products are written out.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def split_pairs(pairs):
    """int64 pairs of activation words -> the words of columns 8i .. 8i+3 and of columns 8i+4 .. 8i+7."""
    return pairs.to(tl.int32), (pairs >> 32).to(tl.int32)


@triton.jit
def dot_words(a, b, start):
    """start + the dot product of four int8 with four int8, each four in a word (int32)."""
    if INTERPRETED:
        out = start + tl.zeros_like(a)
        for i in tl.static_range(4):
            out += (a << (24 - 8 * i) >> 24) * (b << (24 - 8 * i) >> 24)
        return out
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, start + tl.zeros_like(a)], tl.int32, is_pure=True, pack=1
    )


@triton.jit
def dot_int4(words, low, high):
    """Codes 0 .. 15, eight a word, against int8 activations: low and high as of ``split_pairs`` -> int32."""
    if INTERPRETED:
        return dot_words(words & 0x0F0F0F0F, low, dot_words((words >> 4) & 0x0F0F0F0F, high, 0))
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 a, b;
        and.b32 a, $1, 0x0f0f0f0f;
        shr.b32 b, $1, 4;
        and.b32 b, b, 0x0f0f0f0f;
        dp4a.s32.s32 a, a, $2, 0;
        dp4a.s32.s32 $0, b, $3, a;
        }""",
        "=r,r,r,r",
        [words, low, high],
        tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def quantize_groups(x):
    """float32 x [..., 32], a group a row -> codes int32 [..., 32] in -127 .. 127, scales [...], sums [...] as in
    ``rows.QuantizedRows``."""
    scales = tl.max(tl.abs(x), x.shape.__len__() - 1) / 127.0
    scaled = x / tl.expand_dims(tl.where(scales > 0, scales, 1.0), x.shape.__len__() - 1)
    codes = tl.where(scaled >= 0, scaled + 0.5, scaled - 0.5).to(tl.int32)  # rounds towards 0
    return codes, scales, scales * tl.sum(codes, x.shape.__len__() - 1).to(tl.float32)


@triton.jit
def store_groups(x, codes_ptr, scales_ptr, sums_ptr, groups, mask):
    """Quantise x [n, 32] and store it as the groups [n] (numbers from the pointers on) where mask [n]."""
    codes, scales, sums = quantize_groups(x)
    tl.store(codes_ptr + groups[:, None] * 32 + tl.arange(0, 32)[None, :], codes.to(tl.int8), mask=mask[:, None])
    tl.store(scales_ptr + groups, scales, mask=mask)
    tl.store(sums_ptr + groups, sums, mask=mask)
