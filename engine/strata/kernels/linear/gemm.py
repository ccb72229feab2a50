"""x @ W.T of more rows x, in bf16, with W in int4, int8 or mxfp4: tensor cores, W unpacked in registers.

Weights become bf16, not float16: activations between layers may lie beyond 65504, and both sides of a product have one
type. 4-bit codes are scaled in pairs of bf16 (``unpack``).

    grid: (rows of W / BLOCK_ROWS, tokens / BLOCK_TOKENS, SPLITS)

A program multiplies BLOCK_ROWS rows of W with BLOCK_TOKENS tokens over a part of the columns. Where a product has too
few blocks for the GPU's cores, columns are split in SPLITS parts, whose sums ``finish_kernel`` adds up in their order.
It also does what follows the product, for which a block of the product does not have all that is needed.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.linear.tuning import many_rows
from strata.kernels.linear.weight import Weight
from strata.kernels.triton_functions import INTERPRETED, activate, overlap_launches
from strata.kernels.unpack import unpacked_int4, unpacked_mxfp4

FINISH_BLOCK = 512
DEQUANTIZE_ROWS, DEQUANTIZE_COLS = 16, 256


def partial_products(weight: Weight, x: Tensor, dtype: torch.dtype) -> Tensor:
    """x bf16 [tokens, cols] -> [splits, tokens, rows], which add up to x @ W.T: float32, or ``dtype`` if it is one."""
    tokens, cols = x.shape
    config = many_rows(weight.kind, weight.rows, tokens)
    splits = gcd(config.splits, triton.cdiv(cols, config.block_cols))  # equal parts
    out_dtype = dtype if splits == 1 else torch.float32
    out = torch.empty(splits, tokens, weight.rows, dtype=out_dtype, device=x.device)
    grid = (triton.cdiv(weight.rows, config.block_rows), triton.cdiv(tokens, config.block_tokens), splits)
    gemm_kernel[grid](
        _codes(weight), weight.scales, weight.mins, weight.supers, x, out, tokens, weight.rows,
        KIND=weight.kind, COLS=cols, SPLITS=splits, BLOCK_TOKENS=config.block_tokens,
        BLOCK_ROWS=config.block_rows, BLOCK_COLS=config.block_cols, STAGES=config.stages,
        num_warps=config.warps, **launch.early(),
    )  # fmt: skip
    return out


def dequantize(weight: Weight, begin: int, end: int) -> Tensor:
    """Rows begin .. end - 1 of W: bf16 [end - begin, cols]."""
    out = torch.empty(end - begin, weight.cols, dtype=torch.bfloat16, device=weight.codes.device)
    grid = (triton.cdiv(end - begin, DEQUANTIZE_ROWS), triton.cdiv(weight.cols, DEQUANTIZE_COLS))
    dequantize_kernel[grid](
        _codes(weight), weight.scales, weight.mins, weight.supers, out, begin, end,
        KIND=weight.kind, COLS=weight.cols, BLOCK_ROWS=DEQUANTIZE_ROWS, BLOCK_COLS=DEQUANTIZE_COLS, num_warps=4,
    )  # fmt: skip
    return out


def _codes(weight: Weight) -> Tensor:
    codes = weight.codes.view(torch.int8) if weight.kind == "int8" else weight.codes
    assert codes.numel() < 1 << 31, f"kernels count codes in 32 bits, and {weight.rows} x {weight.cols} has more"
    return codes


def finish(partials: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """partials [splits, tokens, rows] and bias [rows], added up -> [tokens, rows] in ``dtype``."""
    out = torch.empty(partials.shape[1:], dtype=dtype, device=partials.device)
    _finish(partials, bias, "store", out)
    return out


def finish_add_(partials: Tensor, bias: Tensor | None, out: Tensor, share: Tensor | None) -> Tensor:
    """out float32 [tokens, rows] += share [tokens, 1] * (partials + bias), added up; share None: 1."""
    _finish(partials, bias, "add", out, share)
    return out


def finish_gated(partials: Tensor, bias: Tensor | None, limit: float | None) -> Tensor:
    """activation(gate, up) of [gate, up] = partials + bias, added up -> bf16 [tokens, rows / 2]."""
    _, tokens, rows = partials.shape
    out = torch.empty(tokens, rows // 2, dtype=torch.bfloat16, device=partials.device)
    _finish(partials, bias, "gated", out, limit=limit)
    return out


def _finish(
    partials: Tensor,
    bias: Tensor | None,
    result: str,
    out: Tensor,
    share: Tensor | None = None,
    limit: float | None = None,
) -> None:
    splits, tokens, _ = partials.shape
    rows = out.shape[1]
    finish_kernel[(triton.cdiv(rows, FINISH_BLOCK), tokens)](
        partials, bias, share, out, tokens, rows,
        SPLITS=splits, RESULT=result, LIMIT=limit, BLOCK=FINISH_BLOCK, num_warps=4, **launch.early(),
    )  # fmt: skip


@triton.jit
def gemm_kernel(
    codes_ptr,  # int32 [rows, words]; int8 [rows, COLS] of int8
    scales_ptr,  # [rows, groups]: uint8 (int4: times d; mxfp4: exponents) or float16 (int8)
    mins_ptr,  # uint8 [rows, groups]: int4
    supers_ptr,  # int32 [rows, superblocks], words of two float16: int4
    x_ptr,  # bf16 [tokens, COLS]
    out_ptr,  # [SPLITS, tokens, rows]
    tokens,
    rows,
    KIND: tl.constexpr,
    COLS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    STEPS: tl.constexpr = triton.cdiv(COLS, BLOCK_COLS) // SPLITS
    split = tl.program_id(2)
    n = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row = tl.minimum(n, rows - 1)
    m = tl.program_id(1) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    token = tl.minimum(m, tokens - 1)
    overlap_launches(EARLY)
    total = tl.zeros((BLOCK_ROWS, BLOCK_TOKENS), tl.float32)
    for i in tl.range(STEPS, num_stages=STAGES):
        step = split * STEPS + i
        column = step * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
        x_pointers = x_ptr + token[None, :] * COLS + column[:, None]
        if COLS % BLOCK_COLS == 0:
            x = tl.load(x_pointers)
        else:
            x = tl.load(x_pointers, mask=column[:, None] < COLS, other=0.0)
        weight = _weights(codes_ptr, scales_ptr, mins_ptr, supers_ptr, row, step, KIND, COLS, BLOCK_ROWS, BLOCK_COLS)
        if INTERPRETED:  # it reads bf16 as integers
            total = tl.dot(weight.to(tl.float32), x.to(tl.float32), total)
        else:
            total = tl.dot(weight, x, total)
    place = (split * tokens + m)[None, :].to(tl.int64) * rows + n[:, None]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=(m < tokens)[None, :] & (n < rows)[:, None])


@triton.jit
def dequantize_kernel(
    codes_ptr,  # as in ``gemm_kernel``, like the next three
    scales_ptr,
    mins_ptr,
    supers_ptr,
    out_ptr,  # bf16 [end - begin, COLS]
    begin,
    end,
    KIND: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    """Grid (rows / BLOCK_ROWS, COLS / BLOCK_COLS)."""
    n = begin + tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    step = tl.program_id(1)
    row = tl.minimum(n, end - 1)
    weight = _weights(codes_ptr, scales_ptr, mins_ptr, supers_ptr, row, step, KIND, COLS, BLOCK_ROWS, BLOCK_COLS)
    column = step * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    place = (n - begin)[:, None].to(tl.int64) * COLS + column[None, :]
    tl.store(out_ptr + place, weight, mask=(n < end)[:, None] & (column < COLS)[None, :])


@triton.jit
def finish_kernel(
    partials_ptr,  # [SPLITS, tokens, rows, or twice as many where RESULT is "gated"]
    bias_ptr,  # float32 [rows, or twice as many], or None
    share_ptr,  # [tokens] or None
    out_ptr,  # [tokens, rows]
    tokens,
    rows,
    SPLITS: tl.constexpr,
    RESULT: tl.constexpr,  # "store", "add", "gated"
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (rows / BLOCK, tokens)."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.program_id(1).to(tl.int64)
    wanted = n < rows
    overlap_launches(EARLY)
    if RESULT == "gated":
        gate = _added_up(partials_ptr, bias_ptr, tokens, token, 2 * rows, n, wanted, SPLITS)
        up = _added_up(partials_ptr, bias_ptr, tokens, token, 2 * rows, n + rows, wanted, SPLITS)
        out = activate(gate, up, LIMIT)
    else:
        out = _added_up(partials_ptr, bias_ptr, tokens, token, rows, n, wanted, SPLITS)
        if RESULT == "add":
            if share_ptr is not None:
                out *= tl.load(share_ptr + token).to(tl.float32)
            out += tl.load(out_ptr + token * rows + n, mask=wanted, other=0.0)
    tl.store(out_ptr + token * rows + n, out.to(out_ptr.dtype.element_ty), mask=wanted)


@triton.jit
def _added_up(partials_ptr, bias_ptr, tokens, token, width, n, wanted, SPLITS: tl.constexpr):
    total = tl.load(partials_ptr + token * width + n, mask=wanted, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partials_ptr + (split * tokens + token) * width + n, mask=wanted, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + n, mask=wanted, other=0.0)
    return total


@triton.jit
def _weights(
    codes_ptr,
    scales_ptr,
    mins_ptr,
    supers_ptr,
    row,
    step,
    KIND: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    """Columns step * BLOCK_COLS on of the rows [BLOCK_ROWS], bf16."""
    GROUPS: tl.constexpr = COLS // 32
    BLOCK_GROUPS: tl.constexpr = BLOCK_COLS // 32
    FULL: tl.constexpr = COLS % BLOCK_COLS == 0
    group = step * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    has_group = group[None, :] < GROUPS
    scales = _load(scales_ptr + row[:, None] * GROUPS + group[None, :], has_group, FULL)
    if KIND == "int8":
        column = step * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
        codes = _load(codes_ptr + row[:, None] * COLS + column[None, :], column[None, :] < COLS, FULL)
        codes = tl.reshape(codes, (BLOCK_ROWS, BLOCK_GROUPS, 32)).to(tl.float32)
        weights = tl.reshape((codes * scales.to(tl.float32)[:, :, None]).to(tl.bfloat16), (BLOCK_ROWS, BLOCK_COLS))
    else:
        WORDS: tl.constexpr = COLS // 8
        word = step * (BLOCK_COLS // 8) + tl.arange(0, BLOCK_COLS // 8)
        words = _load(codes_ptr + row[:, None] * WORDS + word[None, :], word[None, :] < WORDS, FULL)
        if KIND == "int4":
            SUPERS: tl.constexpr = max(1, COLS // 256)
            mins = _load(mins_ptr + row[:, None] * GROUPS + group[None, :], has_group, FULL)
            if COLS % 256 == 0 and BLOCK_COLS <= 256:  # one superblock a step
                supers = tl.load(supers_ptr + row * SUPERS + step * BLOCK_COLS // 256)[:, None]
            else:
                supers = tl.load(supers_ptr + row[:, None] * SUPERS + tl.minimum(group // 8, SUPERS - 1)[None, :])
            weights = unpacked_int4(words, scales, mins, supers)
        else:
            weights = unpacked_mxfp4(words, scales)
    return weights


@triton.jit
def _load(pointers, wanted, FULL: tl.constexpr):
    if FULL:
        out = tl.load(pointers)
    else:
        out = tl.load(pointers, mask=wanted, other=0)
    return out
