"""Device functions that Triton kernels of several operations share.

W4A8 in this form: a group of 32 weights, 16 bytes as four words of eight nibbles, against 32 int8 activations as four
pairs of words. A pair is loaded as one int64, so both sides arrive in 16-byte loads and in the same order.

The tests run these without a GPU through Triton's interpreter, which knows no inline assembly: there the same is
written out.
"""

from __future__ import annotations

import time

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, globaltimer

# () -> int64: of a clock that goes on while a kernel runs.
nanoseconds = time.perf_counter_ns if triton.knobs.runtime.interpret else globaltimer
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def overlap_launches(EARLY: tl.constexpr):
    """Lets the next kernel's programs start, and waits for what the previous kernels wrote. What a program does before
    it overlaps with these; it must not touch anything that they write or read. EARLY: see ``launch.early``."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def find_tile(
    starts_ptr,
    tile,
    num_seqs,
    TIMES: tl.constexpr,
    ROWS: tl.constexpr,
    LEAVE: tl.constexpr,
    SEQS: tl.constexpr,
):
    """Of tiles of ROWS rows, of one sequence each, number ``tile``: its sequence, and its number within that; num_seqs
    where there are fewer. A sequence has TIMES rows for each of its new tokens (starts: int32 [num_seqs + 1]); none,
    if it has LEAVE new tokens or less. SEQS: num_seqs or more, a power of two."""
    tiles_to = tl.cumsum(count_tiles(starts_ptr, num_seqs, TIMES, ROWS, LEAVE, SEQS), 0)
    seq = tl.sum((tiles_to <= tile).to(tl.int32), 0)
    return tl.minimum(seq, num_seqs), tile - tl.max(tl.where(tiles_to <= tile, tiles_to, 0), 0)


@triton.jit
def count_tiles(starts_ptr, num_seqs, TIMES: tl.constexpr, ROWS: tl.constexpr, LEAVE: tl.constexpr, SEQS: tl.constexpr):
    """[SEQS]: how many tiles each of the first ``num_seqs`` sequences has; see ``find_tile``."""
    each = tl.arange(0, SEQS)
    there = each < num_seqs
    num_new = tl.load(starts_ptr + each + 1, mask=there, other=0) - tl.load(starts_ptr + each, mask=there, other=0)
    if LEAVE:
        num_new = tl.where(num_new <= LEAVE, 0, num_new)
    return tl.cdiv(num_new * TIMES, ROWS)


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
def unpack_int4(words):
    """Eight codes 0 .. 15 a word -> two words of four int8, which meet ``split_pairs``'s."""
    return words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F


@triton.jit
def unpack_mxfp4(words):
    """Eight E2M1 numbers a word -> two words of four int8, which meet ``split_pairs``'s: twice the numbers, integers
    0, 1, 2, 3, 4, 6, 8, 12 and the same below zero."""
    if INTERPRETED:
        low = tl.zeros_like(words)
        high = tl.zeros_like(words)
        for i in tl.static_range(4):
            low |= (_twice_e2m1(words >> (8 * i)) & 255) << (8 * i)
            high |= (_twice_e2m1(words >> (8 * i + 4)) & 255) << (8 * i)
        return low, high
    # prmt picks four bytes of eight by the lower 3 bits of four nibbles, here the magnitudes of four codes at once; it
    # reads the nibbles in order, the codes 0, 4, 1, 5, so two more sort them. Its fourth bit copies a byte's sign. What
    # is below zero is ~magnitude + 1, added without a carry into the next byte.
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, s, n, v;
        and.b32 a, $2, 0x77777777;
        shr.b32 b, a, 16;
        prmt.b32 a, 0x03020100, 0x0c080604, a;
        prmt.b32 b, 0x03020100, 0x0c080604, b;
        shl.b32 s, $2, 4;
        prmt.b32 s, s, s, 0xba98;
        and.b32 n, s, 0x01010101;
        prmt.b32 v, a, b, 0x6420;
        xor.b32 v, v, s;
        and.b32 s, v, 0x80808080;
        and.b32 v, v, 0x7f7f7f7f;
        add.s32 v, v, n;
        xor.b32 $0, v, s;
        prmt.b32 s, $2, $2, 0xba98;
        and.b32 n, s, 0x01010101;
        prmt.b32 v, a, b, 0x7531;
        xor.b32 v, v, s;
        and.b32 s, v, 0x80808080;
        and.b32 v, v, 0x7f7f7f7f;
        add.s32 v, v, n;
        xor.b32 $1, v, s;
        }""",
        "=&r,=&r,r",
        [words],
        (tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _twice_e2m1(code):
    magnitude = code & 7
    wide = tl.where(magnitude == 7, 12, tl.where(magnitude == 6, 8, tl.where(magnitude == 5, 6, magnitude)))
    return tl.where(code & 8 != 0, -wide, wide)


@triton.jit
def power_of_two(exponents):
    """E8M0 scales (uint8) -> half of 2^(scale - 127), float32: for numbers that ``unpack_mxfp4`` doubled. Scales 0 and
    1 become 0 (2^-127 is beyond what a sum of float32 notices)."""
    return (tl.maximum(exponents.to(tl.int32) - 1, 0) << 23).to(tl.float32, bitcast=True)


@triton.jit
def dot_int4(words, low, high):
    """Codes 0 .. 15, eight a word, against int8 activations: low and high as of ``split_pairs`` -> int32."""
    codes_low, codes_high = unpack_int4(words)
    return dot_words(codes_low, low, dot_words(codes_high, high, 0))


@triton.jit
def split_halves(words):
    """int32 words of two float16 -> float32 of the lower, of the upper one."""
    lower = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return lower, (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


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


@triton.jit
def activate(gate, up, LIMIT: tl.constexpr):
    """silu(gate) * up; with a LIMIT gpt-oss' clamped one (``kernels.clamped_swiglu``). float32."""
    if LIMIT is None:
        out = gate / (1 + tl.exp(-gate)) * up
    else:
        gate = tl.minimum(gate, LIMIT)
        out = gate / (1 + tl.exp(-1.702 * gate)) * (tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1)
    return out
