"""The matrix of a product, as the kernels of a GPU read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strata.kernels.matrix import Matrix

INTEGER_KINDS = frozenset({"int4", "int8", "mxfp4"})


@dataclass(frozen=True, slots=True)
class Weight:
    """W [rows, cols] in bit format ``kind``, its parts with a first dimension of ``rows``.

    codes: int32 words of the codes, or W itself in bf16; scales, mins: as stored; supers: int32, words of d and dmin;
    bias: float32 [rows]."""

    kind: str
    rows: int
    cols: int
    codes: Tensor
    scales: Tensor | None = None
    mins: Tensor | None = None
    supers: Tensor | None = None
    bias: Tensor | None = None


def stack(matrices: Sequence[Matrix]) -> Weight:
    """Matrices of one kind, one below the other; all of them have a bias or none."""
    first = matrices[0]
    assert all(matrix.kind == first.kind for matrix in matrices), "matrices of several bit formats"
    biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
    assert len(biases) in (0, len(matrices)), "some of the stacked matrices have a bias and some not"
    parts = {name: _stack([matrix.parts[name] for matrix in matrices]) for name in first.parts}
    bias = _stack(biases).float() if biases else None
    if first.kind == "bf16":
        weight = parts["weight"].bfloat16()
        rows, cols = weight.shape
        return Weight("bf16", rows, cols, weight, bias=bias)
    assert first.kind in INTEGER_KINDS, f"no kernel reads {first.kind!r}"
    codes = parts["codes"].view(torch.int32)
    supers = parts["super"].view(torch.int32).squeeze(-1) if "super" in parts else None
    rows, words = codes.shape
    cols = words * (4 if first.kind == "int8" else 8)
    return Weight(first.kind, rows, cols, codes, parts["scales"], parts.get("mins"), supers, bias)


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0].contiguous() if len(tensors) == 1 else torch.cat(tensors)
