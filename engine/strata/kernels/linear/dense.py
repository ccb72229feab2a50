"""x @ W.T + b on a GPU, and what follows it: which kernel does it.

Few rows x come as ``QuantizedRows`` and meet W as it is. More come in bf16 and meet it in tensor cores: unpacked within
the product, or, where there are so many that this costs more than it saves, before it, for cuBLAS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.linear import gemm, triton
from strata.kernels.linear.tuning import MAX_UNPACKED_ROWS
from strata.kernels.linear.weight import INTEGER_KINDS, Weight, stack
from strata.kernels.matrix import Activation, Matrix
from strata.kernels.quantize.triton import dequantize, quantize
from strata.kernels.rows import QuantizedRows

MAX_DEQUANTIZED = 1 << 26  # weights that are unpacked at a time: 128 MiB in bf16

Rows: TypeAlias = Any  # Tensor | QuantizedRows: bf16 [tokens, cols], or the same rounded


class Dense:
    """W of several matrices, one below the other.

    rows: of W. rounded: whether it reads rounded activations as they are; the alternative is bf16."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self._weights = [stack(list(alike)) for _, alike in groupby(matrices, key=lambda matrix: matrix.kind)]
        self.rows = sum(weight.rows for weight in self._weights)
        self.rounded = any(weight.kind in INTEGER_KINDS for weight in self._weights)

    def __call__(self, x: Rows, dtype: torch.dtype) -> Tensor:
        """[tokens, rows] in ``dtype``."""
        products = [_product(weight, x, dtype) for weight in self._weights]
        return products[0] if len(products) == 1 else torch.cat(products, -1)

    def add_(self, x: Rows, out: Tensor, share: Tensor | None) -> Tensor:
        """out float32 [tokens, rows] += share [tokens, 1] * (x @ W.T + b); share None: 1."""
        (weight,) = self._weights
        if _takes_rounded(weight, x):
            return triton.product_add_(weight, x, out, share)
        return gemm.finish_add_(_partials(weight, x, torch.bfloat16), weight.bias, out, share)

    def gated(self, x: Rows, activation: Activation) -> Rows:
        """activation(gate, up) of [gate, up] = x @ W.T + b; rounded like x."""
        if len(self._weights) > 1:  # gate and up in different formats
            gated = gemm.finish_gated(self(x, torch.bfloat16)[None], None, activation.limit)
        elif _takes_rounded(self._weights[0], x):
            return triton.product_gated(self._weights[0], x, activation.limit)
        else:
            (weight,) = self._weights
            gated = gemm.finish_gated(_partials(weight, x, torch.bfloat16), weight.bias, activation.limit)
        return quantize(gated) if isinstance(x, QuantizedRows) else gated


def _takes_rounded(weight: Weight, x: Rows) -> bool:
    return isinstance(x, QuantizedRows) and weight.kind in INTEGER_KINDS


def _product(weight: Weight, x: Rows, dtype: torch.dtype) -> Tensor:
    if _takes_rounded(weight, x):
        return triton.product(weight, x, dtype)
    partials = _partials(weight, x, dtype)
    if len(partials) == 1 and weight.bias is None:
        return partials[0]
    return gemm.finish(partials, weight.bias, dtype)


def _partials(weight: Weight, x: Rows, dtype: torch.dtype) -> Tensor:
    """[splits, tokens, rows] that add up to x @ W.T; in ``dtype`` where it is one."""
    x = dequantize(x) if isinstance(x, QuantizedRows) else x
    if weight.kind != "bf16" and x.shape[0] <= MAX_UNPACKED_ROWS:
        return gemm.partial_products(weight, x, dtype)
    products = [_mm(x, piece, dtype) for piece in _bf16(weight)]
    return (products[0] if len(products) == 1 else torch.cat(products, -1))[None]


def _mm(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return functional.linear(x, weight) if dtype == x.dtype else torch.mm(x, weight.T, out_dtype=dtype)


def _bf16(weight: Weight) -> Iterator[Tensor]:
    """W in pieces of its rows."""
    if weight.kind == "bf16":
        yield weight.codes
        return
    step = max(1, MAX_DEQUANTIZED // weight.cols)
    for begin in range(0, weight.rows, step):
        yield gemm.dequantize(weight, begin, min(begin + step, weight.rows))
