"""Rounding of bf16 rows to 8 bits, for steps that cannot do it as they write, and back. One program: GROUPS groups of
32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels.rows import GROUP, QuantizedRows, empty_rows
from strata.kernels.triton_functions import store_groups

GROUPS_EACH = 32


def quantize(x: Tensor) -> QuantizedRows:
    """x [tokens, cols], contiguous."""
    tokens, cols = x.shape
    out = empty_rows(tokens, cols, x.device)
    groups = x.numel() // GROUP
    quantize_kernel[(triton.cdiv(groups, GROUPS_EACH),)](
        x, out.codes, out.scales, out.sums, groups, GROUPS=GROUPS_EACH, num_warps=2
    )
    return out


def dequantize(rows: QuantizedRows) -> Tensor:
    """bf16 [tokens, cols]."""
    out = torch.empty(rows.codes.shape, dtype=torch.bfloat16, device=rows.codes.device)
    groups = out.numel() // GROUP
    dequantize_kernel[(triton.cdiv(groups, GROUPS_EACH),)](
        rows.codes, rows.scales, out, groups, GROUPS=GROUPS_EACH, num_warps=2
    )
    return out


@triton.jit(do_not_specialize=["num_groups"])
def quantize_kernel(
    x_ptr,  # [num_groups, 32]
    codes_ptr,  # int8 [num_groups, 32]
    scales_ptr,  # float32 [num_groups], as sums
    sums_ptr,
    num_groups,
    GROUPS: tl.constexpr,
):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    mask = group < num_groups
    x = tl.load(x_ptr + group[:, None] * 32 + tl.arange(0, 32)[None, :], mask=mask[:, None], other=0.0)
    store_groups(x.to(tl.float32), codes_ptr, scales_ptr, sums_ptr, group, mask)


@triton.jit(do_not_specialize=["num_groups"])
def dequantize_kernel(
    codes_ptr,  # int8 [num_groups, 32]
    scales_ptr,  # float32 [num_groups]
    out_ptr,  # bf16 [num_groups, 32]
    num_groups,
    GROUPS: tl.constexpr,
):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    mask = group < num_groups
    column = tl.arange(0, 32)[None, :]
    codes = tl.load(codes_ptr + group[:, None] * 32 + column, mask=mask[:, None], other=0)
    out = codes.to(tl.float32) * tl.load(scales_ptr + group, mask=mask, other=0.0)[:, None]
    tl.store(out_ptr + group[:, None] * 32 + column, out.to(tl.bfloat16), mask=mask[:, None])
