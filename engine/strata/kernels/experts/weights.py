"""Device functions that read the matrices of an expert's blob, whatever their bit format.

A row is read in units of a lane, 16 bytes: 32 columns of 4-bit codes, a group, or 16 of int8, or 8 of bf16
(``Place.lane``). A product of weights with activations of 8 bits is, for a row of weights,

    sum over lanes of  step * scale * (sum over the lane of weight's code * activation's code)  -  low * sum

with the activations' scale and sum of ``rows.QuantizedRows`` and the weights' step and low of the format (step: not
bf16; low: int4 only).
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.kernels.triton_functions import (
    INTERPRETED,
    dot_words,
    power_of_two,
    split_halves,
    split_pairs,
    unpack_mxfp4,
)


@triton.jit
def load_lanes(pointers, place: tl.constexpr, start, L: tl.constexpr, N: tl.constexpr, here):
    """pointers [..., L * N], N for each of the lanes from ``start`` on: loaded where the row has such lanes and where
    ``here`` (a flag, or None for always), else 0."""
    LANES: tl.constexpr = place.cols // place.lane
    if LANES % L == 0:
        loaded = tl.load(pointers) if here is None else tl.load(pointers, mask=here, other=0)
    else:
        inside = (start * N + tl.arange(0, L * N) < LANES * N)[None, :]
        if here is not None:
            inside = inside & here
        loaded = tl.load(pointers, mask=inside, other=0)
    return loaded


@triton.jit
def block_of(place: tl.constexpr, start, L: tl.constexpr, COLS: tl.constexpr):
    """Number of the block of COLS columns, at least as many as a lane's, that each of the lanes belongs to: [L].

    It is said to grow from lane to lane, as it does in steps: the compiler then gives the blocks' numbers to threads as
    the lanes' codes."""
    return tl.max_contiguous((start + tl.arange(0, L)) // (COLS // place.lane), L)


@triton.jit
def aligned(address, KIND: tl.constexpr):
    """Parts of a blob start at multiples of 128 bytes; without a word on it after the cast all loads are scalar."""
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), 16)


@triton.jit
def unaligned(address, KIND: tl.constexpr):
    """For what there is one of for a lane: each is to be loaded by the thread that has the lane's codes. In the wider
    loads that alignment allows, threads would get those of several lanes and exchange them through shared memory."""
    return address.to(tl.pointer_type(KIND))


@triton.jit
def load_weights(address, place: tl.constexpr, rows, start, L: tl.constexpr, here):
    """rows [BN] and lanes start .. start + L - 1 of a matrix of the blob at ``address`` (int64); here: as above.

    -> codes: int32 [BN, L * 4] of eight 4-bit codes, int64 [BN, L * 2] of eight int8, bf16 [BN, L * 8]; step and low
    [BN, L].
    """
    COLS: tl.constexpr = place.cols
    step = tl.zeros((rows.shape[0], L), tl.float32)
    low = step
    UNITS: tl.constexpr = 2 if place.kind == "int8" else 8 if place.kind == "bf16" else 4
    unit: tl.constexpr = tl.int64 if place.kind == "int8" else tl.bfloat16 if place.kind == "bf16" else tl.int32
    pointers = aligned(address + place.codes, unit) + rows[:, None] * (COLS // place.lane * UNITS)
    codes = load_lanes(pointers + (start * UNITS + tl.arange(0, L * UNITS))[None, :], place, start, L, UNITS, here)
    if place.kind != "bf16":
        at = rows[:, None] * (COLS // 32) + block_of(place, start, L, 32)[None, :]
        if place.kind == "int8":
            scales = load_lanes(unaligned(address + place.scales, tl.float16) + at, place, start, L, 1, here)
            step = scales.to(tl.float32)
        else:
            scales = load_lanes(unaligned(address + place.scales, tl.uint8) + at, place, start, L, 1, here)
            if place.kind == "mxfp4":
                step = power_of_two(scales)
            else:
                SUPERS: tl.constexpr = max(1, COLS // 256)
                owner = tl.max_contiguous(tl.minimum(block_of(place, start, L, 256), SUPERS - 1), L)
                pointers = unaligned(address + place.super, tl.int32) + rows[:, None] * SUPERS + owner[None, :]
                d, dmin = split_halves(load_lanes(pointers, place, start, L, 1, here))
                step = scales.to(tl.float32) * d
                mins = load_lanes(unaligned(address + place.mins, tl.uint8) + at, place, start, L, 1, here)
                low = mins.to(tl.float32) * dmin
    return codes, step, low


@triton.jit
def load_activations(codes, row, place: tl.constexpr, start, L: tl.constexpr, here):
    """One row of activations: int64 [1, L * lane / 8], eight codes each."""
    PAIRS: tl.constexpr = place.lane // 8
    pointers = codes.to(tl.pointer_type(tl.int64)) + row * (place.cols // 8)
    return load_lanes(pointers + (start * PAIRS + tl.arange(0, L * PAIRS))[None, :], place, start, L, PAIRS, here)


@triton.jit
def load_scales(scales, row, place: tl.constexpr, start, L: tl.constexpr, COLS: tl.constexpr, here):
    """Scales or sums of one row of activations, of which each COLS share one: as many tensors, float32 [1, L], as each
    lane has."""
    pointers = scales + row * (place.cols // COLS)
    if place.lane <= COLS:
        pointers = unaligned(pointers.to(tl.int64), tl.float32) + block_of(place, start, L, COLS)[None, :]
        out = (load_lanes(pointers, place, start, L, 1, here),)
    else:
        PARTS: tl.constexpr = place.lane // COLS
        pointers += (start * PARTS + tl.arange(0, L * PARTS))[None, :]
        out = parts(load_lanes(pointers, place, start, L, PARTS, here), PARTS)
    return out


@triton.jit
def parts(x, PARTS: tl.constexpr):
    """[N, L * PARTS] -> PARTS tensors [N, L]: the first of each PARTS neighbours, the second ..."""
    N: tl.constexpr = x.shape[0]
    L: tl.constexpr = x.shape[1] // PARTS
    if PARTS == 1:
        out = (x,)
    elif PARTS == 2:
        out = tl.split(tl.reshape(x, (N, L, 2)))
    elif PARTS == 4:
        a, b = tl.split(tl.reshape(x, (N, L, 2, 2)))
        a, b = tl.split(a), tl.split(b)
        out = (a[0], b[0], a[1], b[1])
    else:
        a, b = tl.split(tl.reshape(x, (N, L, 2, 2, 2)))
        a, b = tl.split(a), tl.split(b)
        a, b, c, d = tl.split(a[0]), tl.split(b[0]), tl.split(a[1]), tl.split(b[1])
        out = (a[0], b[0], c[0], d[0], a[1], b[1], c[1], d[1])
    return out


@triton.jit
def add_products(acc, weights, activations, scales, sums, place: tl.constexpr):
    """acc [BN, L] + the products by lanes; weights as of ``load_weights``, the other three as of the functions
    above."""
    codes, step, low = weights
    PARTS: tl.constexpr = len(scales)
    products = dots(codes, activations, place, PARTS)
    total = products[0] * scales[0]
    sum_ = sums[0]
    for i in tl.static_range(1, PARTS):
        total += products[i] * scales[i]
        sum_ += sums[i]
    if place.kind == "bf16":
        acc += total
    else:
        acc += total * step
    if place.kind == "int4":
        acc += low * -sum_
    return acc


@triton.jit
def dots(codes, activations, place: tl.constexpr, PARTS: tl.constexpr):
    """codes of ``load_weights``, activations of ``load_activations`` -> the products of the PARTS pieces of each lane:
    as many tensors, float32 [BN, L]."""
    if place.kind == "bf16":
        weights = parts(codes, 8)
        total = weights[0].to(tl.float32) * activations.to(tl.int8).to(tl.float32)
        for i in tl.static_range(1, 8):
            total += weights[i].to(tl.float32) * (activations >> (8 * i)).to(tl.int8).to(tl.float32)
        out = (total,)
    else:
        UNITS: tl.constexpr = place.lane // 8
        PER: tl.constexpr = UNITS // PARTS
        units, pairs = parts(codes, UNITS), parts(activations, UNITS)
        out = (unit_dots(units[:PER], pairs[:PER], place),)
        for i in tl.static_range(1, PARTS):
            one = unit_dots(units[i * PER : i * PER + PER], pairs[i * PER : i * PER + PER], place)
            out = out + (one,)
    return out


@triton.jit
def unit_dots(units, pairs, place: tl.constexpr):
    """The sum of the products of some units [BN, L], of eight weights each, with as many pairs [1, L]: float32."""
    total = tl.zeros(units[0].shape, tl.int32)
    above = total
    for i in tl.static_range(len(units)):
        low, high = split_pairs(pairs[i])
        low += tl.zeros_like(total)
        high += tl.zeros_like(total)
        if place.kind == "int8":
            weights_low, weights_high = split_pairs(units[i])
            total = dot_words(weights_high, high, dot_words(weights_low, low, total))
        elif place.kind == "mxfp4":
            total += dot_mxfp4(units[i], low, high)
        else:
            total = dot_words(units[i] & 0x0F0F0F0F, low, total)
            above = dot_unsigned(units[i] & -0x0F0F0F10, high, above)
    if place.kind == "int4":
        total += above >> 4  # the upper codes were left in their places, 16 times as large
    return total.to(tl.float32)


@triton.jit
def dot_unsigned(a, b, start):
    """As ``dot_words``, for a of bytes without a sign."""
    if INTERPRETED:
        out = start
        for i in tl.static_range(4):
            out += (a >> (8 * i) & 255) * (b << (24 - 8 * i) >> 24)
    else:
        out = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, start], tl.int32, is_pure=True, pack=1
        )
    return out


@triton.jit
def dot_mxfp4(words, low, high):
    """E2M1 codes, eight a word, doubled to whole numbers, against int8 activations as in ``dot_int4`` -> int32."""
    if INTERPRETED:
        numbers_low, numbers_high = unpack_mxfp4(words)
        dots = dot_words(numbers_low, low, dot_words(numbers_high, high, 0))
    else:
        dots = _dot_mxfp4(words, low, high)
    return dots


@triton.jit
def _dot_mxfp4(words, low, high):
    # prmt looks a byte up by three bits; with the fourth, the sign, it gives the byte's own sign eight times: 0. So the
    # codes find the positive numbers, the codes with turned signs the negative ones. Four nibbles of a word are those
    # of columns 0, 4, 1, 5 and of 2, 6, 3, 7, and the activations are put into that order.
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 turned, word, first, second, more, a;
        prmt.b32 first, $2, $3, 0x5140;
        prmt.b32 second, $2, $3, 0x7362;
        xor.b32 turned, $1, 0x88888888;
        prmt.b32 a, 0x03020100, 0x0c080604, turned;
        dp4a.s32.s32 more, a, first, 0;
        shr.u32 turned, turned, 16;
        prmt.b32 a, 0x03020100, 0x0c080604, turned;
        dp4a.s32.s32 more, a, second, more;
        neg.s32 more, more;
        prmt.b32 a, 0x03020100, 0x0c080604, $1;
        dp4a.s32.s32 more, a, first, more;
        shr.u32 word, $1, 16;
        prmt.b32 a, 0x03020100, 0x0c080604, word;
        dp4a.s32.s32 $0, a, second, more;
        }""",
        "=&r,r,r,r",
        [words, low, high],
        tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def load_bias(address, place: tl.constexpr, rows):
    """float32 [BN]."""
    if place.bias < 0:
        bias = tl.zeros(rows.shape, tl.float32)
    else:
        kind: tl.constexpr = tl.float32 if place.bias_is_float32 else tl.bfloat16
        bias = tl.load((address + place.bias).to(tl.pointer_type(kind)) + rows).to(tl.float32)
    return bias
