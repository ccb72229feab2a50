"""Device functions that read the matrices of an expert's blob, whatever their bit format.

All formats share groups of 32 columns, so a product with activations of 8 bits is, for a row of weights,

    sum over groups of  step * scale * (sum over the group of weight's code * activation's code)  -  low * sum

with the activations' scale and sum of ``rows.QuantizedRows`` and the weights' step and low of the format (low: int4
only). Weights are read in units of a lane: 16 bytes of 4-bit codes, a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from strata.kernels.experts.blob import MatrixPlace
from strata.kernels.triton_functions import (
    INTERPRETED,
    dot_int4,
    dot_words,
    power_of_two,
    split_halves,
    split_pairs,
    unpack_mxfp4,
)

GROUP = 32
SUPER_GROUPS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A ``MatrixPlace`` as a constant of a kernel: bytes from the start of the blob, 0 for what the format has not
    (``codes`` are the weights themselves in bf16); bias: -1 for none."""

    kind: str
    rows: int
    cols: int
    codes: int
    scales: int
    mins: int
    super: int
    bias: int
    bias_is_float32: bool

    @classmethod
    def of(cls, place: MatrixPlace) -> Place:
        offsets = place.offsets
        return cls(
            place.kind,
            place.rows,
            place.cols,
            offsets["weight" if place.kind == "bf16" else "codes"],
            offsets.get("scales", 0),
            offsets.get("mins", 0),
            offsets.get("super", 0),
            -1 if place.bias is None else place.bias,
            place.bias_dtype == "F32",
        )


@triton.jit
def load_groups(pointers, start, BG: tl.constexpr, N: tl.constexpr, COLS: tl.constexpr, here):
    """pointers [..., BG * N], N for each of the groups from ``start`` on: loaded where the row has such groups and
    where ``here`` (a flag, or None for always), else 0."""
    GROUPS: tl.constexpr = COLS // 32
    if GROUPS % BG == 0:
        loaded = tl.load(pointers) if here is None else tl.load(pointers, mask=here, other=0)
    else:
        inside = (start * N + tl.arange(0, BG * N) < GROUPS * N)[None, :]
        if here is not None:
            inside = inside & here
        loaded = tl.load(pointers, mask=inside, other=0)
    return loaded


@triton.jit
def aligned(address, KIND: tl.constexpr):
    """Parts of a blob start at multiples of 128 bytes; without a word on it after the cast all loads are scalar."""
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), 16)


@triton.jit
def unaligned(address, KIND: tl.constexpr):
    """For what there is one of in a group: each is to be loaded by the lane that has the group's codes. In the wider
    loads that alignment allows, lanes would get those of several groups and exchange them through shared memory."""
    return address.to(tl.pointer_type(KIND))


@triton.jit
def load_weights(address, place: tl.constexpr, rows, start, BG: tl.constexpr, here):
    """rows [BN] and groups start .. start + BG - 1 of a matrix of the blob at ``address`` (int64); here: as above.

    -> codes [BN, BG * 4]: int32 of eight 4-bit codes or int64 of eight int8, in bf16 the weights [BN, BG * 32]; step
    and low [BN, BG].
    """
    COLS: tl.constexpr = place.cols
    groups = start + tl.arange(0, BG)
    at = rows[:, None] * (COLS // 32) + groups[None, :]
    step = tl.zeros((rows.shape[0], BG), tl.float32)
    low = step
    if place.kind == "bf16":
        pointers = aligned(address + place.codes, tl.bfloat16)
        pointers += rows[:, None] * COLS + (start * 32 + tl.arange(0, BG * 32))[None, :]
        codes = load_groups(pointers, start, BG, 32, COLS, here)
    else:
        unit: tl.constexpr = tl.int64 if place.kind == "int8" else tl.int32
        pointers = aligned(address + place.codes, unit)
        pointers += rows[:, None] * (COLS // 8) + (start * 4 + tl.arange(0, BG * 4))[None, :]
        codes = load_groups(pointers, start, BG, 4, COLS, here)
        if place.kind == "int8":
            pointers = unaligned(address + place.scales, tl.float16) + at
            step = load_groups(pointers, start, BG, 1, COLS, here).to(tl.float32)
        else:
            scales = load_groups(unaligned(address + place.scales, tl.uint8) + at, start, BG, 1, COLS, here)
            if place.kind == "mxfp4":
                step = power_of_two(scales)
            else:
                SUPERS: tl.constexpr = max(1, COLS // 256)
                owner = tl.max_contiguous(tl.minimum(groups // 8, SUPERS - 1), BG)  # see ``unaligned``
                pointers = unaligned(address + place.super, tl.int32) + rows[:, None] * SUPERS + owner[None, :]
                d, dmin = split_halves(load_groups(pointers, start, BG, 1, COLS, here))
                step = scales.to(tl.float32) * d
                mins = load_groups(unaligned(address + place.mins, tl.uint8) + at, start, BG, 1, COLS, here)
                low = mins.to(tl.float32) * dmin
    return codes, step, low


@triton.jit
def load_activations(codes, row, place: tl.constexpr, start, BG: tl.constexpr, here):
    """What ``group_dots`` takes of one row of activations: int64 [1, BG * 4], eight codes each; for bf16 weights
    float32 [1, BG * 32]."""
    if place.kind == "bf16":
        pointers = codes + row * place.cols + (start * 32 + tl.arange(0, BG * 32))[None, :]
        loaded = load_groups(pointers, start, BG, 32, place.cols, here).to(tl.float32)
    else:
        pointers = codes.to(tl.pointer_type(tl.int64)) + row * (place.cols // 8)
        pointers += (start * 4 + tl.arange(0, BG * 4))[None, :]
        loaded = load_groups(pointers, start, BG, 4, place.cols, here)
    return loaded


@triton.jit
def load_scales(scales, row, place: tl.constexpr, start, BG: tl.constexpr, here):
    """Scales or sums of one row of activations, float32 [1, BG]; for bf16 weights [1, BG * 32], one a column."""
    EACH: tl.constexpr = 32 if place.kind == "bf16" else 1
    pointers = scales + row * (place.cols // 32) + (start + tl.arange(0, BG * EACH) // EACH)[None, :]
    return load_groups(pointers, start, BG, EACH, place.cols, here)


@triton.jit
def group_dots(codes, activations, place: tl.constexpr):
    """codes of ``load_weights`` but bf16's, activations of ``load_activations`` -> float32 [BN, BG]."""
    low, high = split_pairs(activations)
    if place.kind == "int8":
        weights_low, weights_high = split_pairs(codes)
        units = dot_words(weights_low, low + tl.zeros_like(weights_low), 0)
        units = dot_words(weights_high, high + tl.zeros_like(weights_high), units)
    elif place.kind == "mxfp4":
        units = dot_mxfp4(codes, low + tl.zeros_like(codes), high + tl.zeros_like(codes))
    else:
        units = dot_int4(codes, low + tl.zeros_like(codes), high + tl.zeros_like(codes))
    return tl.sum(tl.reshape(units, (codes.shape[0], codes.shape[1] // 4, 4)), 2).to(tl.float32)


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
