"""x @ W.T + b of few rows x, rounded to int8, with W in int4, int8 or mxfp4: one reading of W serves all rows.

A *piece* is what a thread reads of W at once: 16 bytes, a group of 32 weights in 4 bits or half a group in 8. A warp
reads 32 pieces that lie side by side, a *tile* of 128 words, of one row of W. A program has ROWS rows of W for each of
its warps, which sums them up by itself, in the same order whatever else runs. Scales are read by the thread that needs
them, so nothing is passed between threads until the sums are.

    grid: (rows of W / (warps * ROWS),)

The rows of the first tiles are read before the program waits for x (``overlap_launches``).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.linear.tuning import few_rows
from strata.kernels.linear.weight import Weight
from strata.kernels.rows import QuantizedRows, empty_rows
from strata.kernels.triton_functions import (
    activate,
    dot_words,
    overlap_launches,
    power_of_two,
    split_halves,
    split_pairs,
    unpack_int4,
    unpack_mxfp4,
)


def product(weight: Weight, x: QuantizedRows, dtype: torch.dtype) -> Tensor:
    """x @ W.T + b: [tokens, rows] in ``dtype``."""
    out = torch.empty(x.codes.shape[0], weight.rows, dtype=dtype, device=x.codes.device)
    _launch(weight, x, "store", weight.rows, out=out)
    return out


def product_add_(weight: Weight, x: QuantizedRows, out: Tensor, share: Tensor | None) -> Tensor:
    """out float32 [tokens, rows] += share [tokens, 1] * (x @ W.T + b); share None: 1."""
    _launch(weight, x, "add", weight.rows, out=out, share=share)
    return out


def product_gated(weight: Weight, x: QuantizedRows, limit: float | None) -> QuantizedRows:
    """activation(gate, up) [tokens, rows / 2], rounded, of [gate, up] = x @ W.T + b."""
    rows = weight.rows // 2
    out = empty_rows(x.codes.shape[0], rows, x.codes.device)
    _launch(weight, x, "gated", rows, gated=out, limit=limit)
    return out


def _launch(
    weight: Weight,
    x: QuantizedRows,
    result: str,
    rows: int,
    *,
    out: Tensor | None = None,
    share: Tensor | None = None,
    gated: QuantizedRows | None = None,
    limit: float | None = None,
) -> None:
    tokens = x.codes.shape[0]
    padded = triton.next_power_of_2(tokens)
    config = few_rows(rows, weight.cols, padded, result == "gated")
    codes, scales, sums = (None, None, None) if gated is None else (gated.codes, gated.scales, gated.sums)
    grid = (triton.cdiv(rows, config.warps * config.rows),)
    few_rows_kernel[grid](
        weight.codes, weight.scales, weight.mins, weight.supers, weight.bias, x.codes, x.scales, x.sums,
        out, share, codes, scales, sums, tokens, rows,
        KIND=weight.kind, COLS=weight.cols, TOKENS=padded, RESULT=result, LIMIT=limit,
        WARPS=config.warps, ROWS=config.rows, TILES=config.tiles, num_warps=config.warps,
        maxnreg=config.registers, **launch.early(),
    )  # fmt: skip


@triton.jit
def few_rows_kernel(
    codes_ptr,  # int32 [rows of W, words]
    scales_ptr,  # [rows of W, groups]: uint8 (int4: times d; mxfp4: exponents) or float16 (int8)
    mins_ptr,  # uint8 [rows of W, groups]: int4
    supers_ptr,  # int32 [rows of W, superblocks], words of two float16: int4
    bias_ptr,  # float32 [rows of W] or None
    x_codes_ptr,  # int8 [tokens, COLS]
    x_scales_ptr,  # float32 [tokens, groups]
    x_sums_ptr,  # float32 [tokens, groups]
    out_ptr,  # [tokens, rows], written, or added to where RESULT is "add"; None where it is "gated"
    share_ptr,  # [tokens] or None
    gated_codes_ptr,  # int8 [tokens, rows], as the next two where RESULT is "gated"
    gated_scales_ptr,  # float32 [tokens, rows / 32]
    gated_sums_ptr,  # float32 [tokens, rows / 32]
    tokens,
    rows,  # of the result; where RESULT is "gated" W has twice as many, gate before up
    KIND: tl.constexpr,
    COLS: tl.constexpr,
    TOKENS: tl.constexpr,  # 1, 2, 4 or 8, at least tokens
    RESULT: tl.constexpr,  # "store", "add", "gated"
    LIMIT: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,  # that are read ahead, of each row
    EARLY: tl.constexpr,
):
    BITS: tl.constexpr = 8 if KIND == "int8" else 4
    ALL_TILES: tl.constexpr = triton.cdiv(COLS * BITS // 32, 128)
    OWN: tl.constexpr = ROWS * 2 if RESULT == "gated" else ROWS
    warp = tl.arange(0, WARPS)
    first = tl.program_id(0) * (WARPS * ROWS)
    own = ()
    for half in tl.static_range(OWN // ROWS):
        for r in tl.static_range(ROWS):
            own = own + (tl.minimum(first + r * WARPS + warp, rows - 1) + half * rows,)
    ahead = ()
    for t in tl.static_range(TILES):
        for r in tl.static_range(OWN):
            if t < ALL_TILES:
                ahead = ahead + (_load_weights(codes_ptr, scales_ptr, mins_ptr, supers_ptr, own[r], t, KIND, COLS),)
    overlap_launches(EARLY)
    sums = ()
    for _ in tl.static_range(OWN * TOKENS):
        sums = sums + (tl.zeros((WARPS, 32), tl.float32),)
    for begin in tl.static_range(0, ALL_TILES, TILES):
        now = ahead
        ahead = ()
        for t in tl.static_range(begin + TILES, begin + 2 * TILES):
            for r in tl.static_range(OWN):
                if t < ALL_TILES:
                    ahead = ahead + (_load_weights(codes_ptr, scales_ptr, mins_ptr, supers_ptr, own[r], t, KIND, COLS),)
        for t in tl.static_range(TILES):
            if begin + t < ALL_TILES:
                added = ()
                for m in tl.static_range(TOKENS):
                    token = tl.minimum(m, tokens - 1)
                    x = _load_activations(
                        x_codes_ptr + token * COLS,
                        x_scales_ptr + token * (COLS // 32),
                        x_sums_ptr + token * (COLS // 32),
                        warp * 0,
                        begin + t,
                        KIND,
                        COLS,
                    )
                    for r in tl.static_range(OWN):
                        added = added + (sums[m * OWN + r] + _dot(now[t * OWN + r], x, KIND, WARPS),)
                sums = added
    for m in tl.static_range(TOKENS):
        if RESULT == "gated":
            # The program's rows are one group of the result.
            place = tl.arange(0, ROWS)[None, :]
            n = first + place * WARPS + warp[:, None]
            gate = tl.zeros((WARPS, ROWS), tl.float32)
            up = tl.zeros((WARPS, ROWS), tl.float32)
            for r in tl.static_range(ROWS):
                gate = tl.where(place == r, tl.sum(sums[m * OWN + r], 1)[:, None], gate)
                up = tl.where(place == r, tl.sum(sums[m * OWN + ROWS + r], 1)[:, None], up)
            if bias_ptr is not None:
                gate += tl.load(bias_ptr + n)
                up += tl.load(bias_ptr + rows + n)
            out = activate(gate, up, LIMIT)
            scale = tl.max(tl.max(tl.abs(out), 1), 0) / 127.0
            scaled = out / tl.where(scale > 0, scale, 1.0)
            codes = tl.where(scaled >= 0, scaled + 0.5, scaled - 0.5).to(tl.int32)
            total = tl.sum(tl.sum(codes, 1), 0).to(tl.float32)
            group = m * (rows // 32) + tl.program_id(0)
            if m < tokens:
                tl.store(gated_codes_ptr + m * rows + n, codes.to(tl.int8))
                tl.store(gated_scales_ptr + group, scale)
                tl.store(gated_sums_ptr + group, scale * total)
        else:
            for r in tl.static_range(ROWS):
                n = first + r * WARPS + warp
                wanted = (n < rows) & (m < tokens)
                out = tl.sum(sums[m * OWN + r], 1)
                if bias_ptr is not None:
                    out += tl.load(bias_ptr + n, mask=wanted, other=0.0)
                if RESULT == "add":
                    if share_ptr is not None:
                        out *= tl.load(share_ptr + m, mask=m < tokens, other=0.0).to(tl.float32)
                    out += tl.load(out_ptr + m * rows + n, mask=wanted, other=0.0)
                tl.store(out_ptr + m * rows + n, out.to(out_ptr.dtype.element_ty), mask=wanted)


@triton.jit
def _load_weights(codes_ptr, scales_ptr, mins_ptr, supers_ptr, row, tile, KIND: tl.constexpr, COLS: tl.constexpr):
    """One tile of the rows [warps]: words [warps, 128], and what ``_dot`` needs of each piece [warps, 32]."""
    GROUPS: tl.constexpr = COLS // 32
    BITS: tl.constexpr = 8 if KIND == "int8" else 4
    WORDS: tl.constexpr = COLS * BITS // 32
    word = tile * 128 + tl.arange(0, 128)
    words = _load(codes_ptr + row[:, None] * WORDS + word[None, :], word < WORDS, WORDS)
    piece = tile * 32 + tl.arange(0, 32)
    # The compiler is told, wrongly, that neighbours read neighbouring numbers. Each reads one, so none is read for
    # another, but threads keep the order that they have over the words, and nothing is passed between them.
    group = row[:, None] * GROUPS + tl.max_contiguous(piece * 4 // BITS, 32)[None, :]
    wanted = piece < WORDS // 4
    scales = _load(scales_ptr + group, wanted, WORDS)
    if KIND == "int4":
        SUPERS: tl.constexpr = max(1, COLS // 256)
        owner = tl.max_contiguous(tl.minimum(piece // 8, SUPERS - 1), 32)
        mins = _load(mins_ptr + group, wanted, WORDS)
        supers = _load(supers_ptr + row[:, None] * SUPERS + owner[None, :], wanted, WORDS)
        out = words, scales, mins, supers
    else:
        out = words, scales
    return out


@triton.jit
def _load_activations(codes_ptr, scales_ptr, sums_ptr, zeros, tile, KIND: tl.constexpr, COLS: tl.constexpr):
    """The columns of a tile. zeros [warps]: every warp reads its own copy, in the layout of its weights."""
    BITS: tl.constexpr = 8 if KIND == "int8" else 4
    WORDS: tl.constexpr = COLS * BITS // 32
    word = tile * 128 + tl.arange(0, 128)
    piece = tile * 32 + tl.arange(0, 32)
    group = zeros[:, None] + tl.max_contiguous(piece * 4 // BITS, 32)[None, :]
    wanted = piece < WORDS // 4
    scales = _load(scales_ptr + group, wanted, WORDS)
    if KIND == "int8":
        words_ptr = codes_ptr.to(tl.pointer_type(tl.int32))
        out = _load(words_ptr + zeros[:, None] + word[None, :], word < WORDS, WORDS), scales
    else:
        pairs_ptr = codes_ptr.to(tl.pointer_type(tl.int64))
        low, high = split_pairs(_load(pairs_ptr + zeros[:, None] + word[None, :], word < WORDS, WORDS))
        if KIND == "int4":
            out = low, high, scales, _load(sums_ptr + group, wanted, WORDS)
        else:
            out = low, high, scales
    return out


@triton.jit
def _dot(weights, x, KIND: tl.constexpr, WARPS: tl.constexpr):
    """The products of a tile, summed within each piece: float32 [warps, 32]."""
    if KIND == "int8":
        out = _of_pieces(dot_words(weights[0], x[0], 0), WARPS) * x[1] * weights[1].to(tl.float32)
    elif KIND == "mxfp4":
        low, high = unpack_mxfp4(weights[0])
        dots = _of_pieces(dot_words(high, x[1], dot_words(low, x[0], 0)), WARPS)
        out = dots * x[2] * power_of_two(weights[1])
    else:
        low, high = unpack_int4(weights[0])
        dots = _of_pieces(dot_words(high, x[1], dot_words(low, x[0], 0)), WARPS)
        d, dmin = split_halves(weights[3])
        out = dots * x[2] * (d * weights[1].to(tl.float32)) - dmin * weights[2].to(tl.float32) * x[3]
    return out


@triton.jit
def _of_pieces(words, WARPS: tl.constexpr):
    return tl.sum(tl.reshape(words, (WARPS, 32, 4)), 2).to(tl.float32)


@triton.jit
def _load(pointers, wanted, WORDS: tl.constexpr):
    """0 where not wanted [columns], which may be only where a row has WORDS that fill no tile."""
    if WORDS % 128 == 0:
        out = tl.load(pointers)
    else:
        out = tl.load(pointers, mask=wanted[None, :], other=0)
    return out
