"""Codes of a bit format back to numbers, in plain torch.

The formats and their bit order are those of ``strata.quant``; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

GROUP = 32  # columns that share a scale
SUPER_GROUPS = 8  # groups that share one fp16 scale of scales


def dequantize(kind: str, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """The matrix [rows, cols] that ``parts`` of format ``kind`` stand for, in ``dtype``."""
    if kind == "bf16":
        return parts["weight"].to(dtype)
    if kind == "int8":
        return dequantize_int8(parts["codes"], parts["scales"]).to(dtype)
    if kind == "int4":
        return dequantize_int4(parts["codes"], parts["scales"], parts["mins"], parts["super"]).to(dtype)
    if kind == "mxfp4":
        return dequantize_mxfp4(parts["codes"], parts["scales"]).to(dtype)
    raise AssertionError(f"no kernel dequantises {kind!r}")


def dequantize_int8(codes: Tensor, scales: Tensor) -> Tensor:
    """codes int8 [rows, cols], scales fp16 [rows, cols/32] -> float32 [rows, cols] = scale * code."""
    rows, cols = codes.shape
    return (codes.view(rows, -1, GROUP) * scales.float()[..., None]).view(rows, cols)


def dequantize_int4(codes: Tensor, scales: Tensor, mins: Tensor, super_: Tensor) -> Tensor:
    """codes uint8 [rows, cols/2], scales and mins uint8 [rows, cols/32], super fp16 [rows, n_super, 2] = (d, dmin) ->
    float32 [rows, cols] = d * scale * code - dmin * min."""
    rows = codes.shape[0]
    step, low = int4_steps(scales, mins, super_)
    return (unpack_nibbles(codes) * step[..., None]).add_(low[..., None]).view(rows, -1)


def int4_steps(scales: Tensor, mins: Tensor, super_: Tensor) -> tuple[Tensor, Tensor]:
    """Step and lowest value of each group, float32 [rows, groups] each: w = step * code + low."""
    groups = scales.shape[1]
    owner = (torch.arange(groups, device=scales.device) // SUPER_GROUPS).clamp_(max=super_.shape[1] - 1)
    d, dmin = super_.float()[:, owner].unbind(-1)
    return d * scales, -(dmin * mins)


def dequantize_mxfp4(codes: Tensor, scales: Tensor) -> Tensor:
    """codes uint8 [rows, cols/2], scales uint8 [rows, cols/32] -> float32 [rows, cols] = 2^(scale - 127) * number."""
    # A code (sign, 2 bits of exponent, 1 of mantissa) is a float16 with fewer bits of each, and a bias of 1 for 15.
    # One core of an EPYC server, 2880 x 2880, 2026-11-30: 20 ms; 143 ms with a table of the 16 numbers.
    wide = unpack_nibbles(codes).to(torch.int16)
    numbers = ((wide & 7) << 9 | (wide & 8) << 12).view(torch.float16).float().mul_(2.0**14)
    # The bits of 2^(scale - 127): the exponent's place in a float32, where 2^-127 is subnormal.
    powers = torch.where(scales == 0, 1 << 22, scales.int() << 23).int().view(torch.float32)
    return numbers.mul_(powers[..., None]).view(codes.shape[0], -1)


def unpack_nibbles(codes: Tensor) -> Tensor:
    """uint8 [rows, cols/2] -> uint8 [rows, cols/32, 32]; byte j of each four holds weights j and j + 4 of eight."""
    words = codes.view(codes.shape[0], -1, 1, 4)
    return torch.cat([words & 15, words >> 4], dim=2).view(codes.shape[0], -1, GROUP)
