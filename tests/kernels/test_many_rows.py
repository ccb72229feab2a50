"""The GPU's products of many rows, against float64."""

from __future__ import annotations

import pytest
import torch

from strata.kernels.linear.gemm import partial_products
from strata.kernels.rows import dequantize_rows
from tests.kernels.conftest import Machine
from tests.kernels.test_few_rows import make, relative

BF16 = 8e-3  # relative norm: weights, their steps and offsets are rounded, by the interpreter by cutting off


@pytest.mark.parametrize("kind", ["int4", "int8", "mxfp4"])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens"),
    [
        pytest.param(64, 512, 16, id="whole blocks"),
        pytest.param(70, 288, 17, id="rows, columns and tokens that fill no block"),
    ],
)
def test_partial_products(machine: Machine, kind: str, rows: int, cols: int, tokens: int) -> None:
    weight, rounded, _ = make(kind, rows, cols, tokens, machine.device)
    x = dequantize_rows(rounded).bfloat16()
    found = machine.call(partial_products, weight, x, torch.float32)
    assert found.shape[1:] == (tokens, rows)
    _, _, expected = make(kind, rows, cols, tokens, "cpu")
    assert relative(found.double().sum(0), expected) < BF16
