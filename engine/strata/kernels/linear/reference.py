"""x @ W.T + b for every bit format, in plain torch: quantised weights stay packed and are dequantised at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.dequantize.reference import dequantize

LinearFn = Callable[[Tensor], Tensor]  # [tokens, cols] -> [tokens, rows]


def linear(x: Tensor, kind: str, parts: Mapping[str, Tensor], bias: Tensor | None = None) -> Tensor:
    """x [tokens, cols], parts of a matrix [rows, cols] in format ``kind``, bias [rows] -> [tokens, rows] like x."""
    return functional.linear(x, dequantize(kind, parts, x.dtype), bias)


def prepare(kind: str, parts: Mapping[str, Tensor], bias: Tensor | None, dtype: torch.dtype) -> LinearFn:
    """The product with one weight, as a function of the activations (in ``dtype``); arguments as for ``linear``."""
    bias = None if bias is None else bias.to(dtype)
    if kind == "bf16":
        weight = parts["weight"].to(dtype)
        return lambda x: functional.linear(x, weight, bias)
    return lambda x: linear(x, kind, parts, bias)
