"""x @ W.T + b for every bit format, in plain torch: quantised weights stay packed and are dequantised at each call, a
piece at a time where they are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.dequantize.reference import dequantize

MAX_DEQUANTIZED = 1 << 26  # weights that a product dequantises at a time: a head has hundreds of millions

LinearFn = Callable[[Tensor], Tensor]  # [tokens, cols] -> [tokens, rows]


def linear(x: Tensor, kind: str, parts: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
    """x [tokens, cols], parts of a matrix [rows, cols] in format ``kind``, bias [rows] -> [tokens, rows] like x."""
    step = max(1, MAX_DEQUANTIZED // x.shape[1])
    if next(iter(parts.values())).shape[0] <= step:
        return functional.linear(x, dequantize(kind, parts, x.dtype), bias)
    pieces = zip(*(part.split(step) for part in parts.values()), strict=True)
    weights = (dequantize(kind, dict(zip(parts, piece, strict=True)), x.dtype) for piece in pieces)
    out = torch.cat([functional.linear(x, weight) for weight in weights], -1)
    return out if bias is None else out.add_(bias)


def prepare(kind: str, parts: Mapping[str, Tensor], bias: Tensor | None, dtype: torch.dtype) -> LinearFn:
    """The product with one weight, as a function of the activations (in ``dtype``); arguments as for ``linear``."""
    bias = None if bias is None else bias.to(dtype)
    if kind == "bf16":
        weight = parts["weight"].to(dtype)
        return lambda x: functional.linear(x, weight, bias)
    return lambda x: linear(x, kind, parts, bias)
