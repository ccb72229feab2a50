"""The steps on a GPU against the plain ones."""

from __future__ import annotations

import torch

from strata import quant
from strata.kernels.cuda import CudaKernels
from strata.kernels.layer import Kernels
from strata.kernels.matrix import Matrix
from strata.kernels.operations import REFERENCE
from strata.kernels.rows import quantize_rows

CUDA, PLAIN = CudaKernels(REFERENCE, torch.bfloat16), Kernels(REFERENCE, torch.float32)


def matrix(kind: str, rows: int, cols: int) -> Matrix:
    return Matrix(kind, quant.get(kind).pack(torch.randn(rows, cols) / cols**0.5).parts)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def test_the_residual_stream_stays_in_float32() -> None:
    torch.manual_seed(0)
    table = matrix("int8", 64, 96)
    x = CUDA.embedding(table)(torch.tensor([3, 60]))
    assert torch.equal(x, PLAIN.embedding(table)(torch.tensor([3, 60])))
    down, inner, share = matrix("int4", 96, 160), torch.randn(2, 160).bfloat16(), torch.rand(2, 1)
    for shares in (None, share):
        found = CUDA.linear_add(down)(inner, x.clone(), shares)
        expected = PLAIN.linear_add(down)(inner.float(), x.clone(), shares)
        assert found.dtype == torch.float32
        assert relative(found - x, expected - x) < 6e-3


def test_rounded_activations_are_taken() -> None:
    torch.manual_seed(1)
    down, inner, x = matrix("int4", 96, 160), torch.randn(2, 160), torch.randn(2, 96)
    found = CUDA.linear_add(down)(quantize_rows(inner), x.clone())
    assert relative(found - x, PLAIN.linear_add(down)(inner, x.clone()) - x) < 1e-2
