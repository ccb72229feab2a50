"""The GPU's products of few rows, against float64."""

from __future__ import annotations

import pytest
import torch

from strata import quant
from strata.kernels.linear.triton import product, product_add_, product_gated
from strata.kernels.linear.tuning import MEASURED, few_rows
from strata.kernels.linear.weight import Weight, stack
from strata.kernels.matrix import Matrix
from strata.kernels.rows import GROUP, QuantizedRows, dequantize_rows, quantize_rows
from tests.kernels.conftest import Machine

EXACT = 1e-5  # relative norm: the activations are rounded before, the rest is float32


def make(
    kind: str, rows: int, cols: int, tokens: int, device: str, bias: bool = False
) -> tuple[Weight, QuantizedRows, torch.Tensor]:
    """W of two matrices, rounded x, and their product in float64."""
    torch.manual_seed(rows + cols + tokens)
    parts = [quant.get(kind).pack(torch.randn(rows // 2, cols) / cols**0.5 + 0.01) for _ in range(2)]
    biases = [torch.randn(rows // 2) if bias else None for _ in range(2)]
    weight = torch.cat([quant.get(kind).unpack(part) for part in parts]).double()
    x = quantize_rows(torch.randn(tokens, cols))
    expected = dequantize_rows(x).double() @ weight.T
    if bias:
        expected += torch.cat([b for b in biases if b is not None]).double()
    matrices = [
        Matrix(kind, {n: t.to(device) for n, t in part.parts.items()}, None if b is None else b.to(device))
        for part, b in zip(parts, biases, strict=True)
    ]
    moved = QuantizedRows(x.codes.to(device), x.scales.to(device), x.sums.to(device))
    return stack(matrices), moved, expected


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu().double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", ["int4", "int8", "mxfp4"])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens"),
    [
        pytest.param(32, 1024, 1, id="whole tiles"),
        pytest.param(22, 96, 1, id="less than a tile, rows that fill no program"),
        pytest.param(16, 1312, 3, id="columns that fill no tile or superblock, tokens that are no power of two"),
        pytest.param(16, 3072, 8, id="several tiles, most tokens"),
    ],
)
def test_product(machine: Machine, kind: str, rows: int, cols: int, tokens: int) -> None:
    weight, x, expected = make(kind, rows, cols, tokens, machine.device)
    found = machine.call(product, weight, x, torch.float32)
    assert relative(found, expected) < EXACT


@pytest.mark.parametrize("shares", [False, True])
def test_product_is_added_with_its_bias(machine: Machine, shares: bool) -> None:
    weight, x, expected = make("int4", 40, 288, 2, machine.device, bias=True)
    residual = torch.randn(2, 40)
    share = torch.rand(2, 1) if shares else None
    found = machine.call(
        product_add_,
        weight,
        x,
        residual.clone().to(machine.device),
        None if share is None else share.to(machine.device),
    )
    assert relative(found, residual.double() + expected * (1 if share is None else share.double())) < EXACT


@pytest.mark.parametrize("limit", [None, 0.7])
@pytest.mark.parametrize("tokens", [1, 2])
def test_product_is_gated_and_rounded(machine: Machine, tokens: int, limit: float | None) -> None:
    weight, x, expected = make("mxfp4" if limit else "int4", 128, 96, tokens, machine.device, bias=True)
    found = machine.call(product_gated, weight, x, limit)
    gate, up = expected.chunk(2, -1)
    if limit is None:
        wanted = torch.nn.functional.silu(gate) * up
    else:
        gate = gate.clamp(max=limit)
        wanted = gate * torch.sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1)
    rounded = quantize_rows(wanted.float())
    assert (found.codes.cpu().int() - rounded.codes.int()).abs().max() <= 1  # a tie may fall to either side
    assert torch.allclose(found.scales.cpu(), rounded.scales, rtol=1e-4)
    sums = dequantize_rows(found).view(tokens, -1, 32).sum(-1)
    assert torch.allclose(found.sums, sums, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [*MEASURED, (12288, 4096)])
def test_a_program_of_a_gated_product_has_one_group(shape: tuple[int, int], tokens: int) -> None:
    """Whatever was measured for a product of the same shape that is not gated."""
    config = few_rows(*shape, tokens, gated=True)
    assert config.warps * config.rows == GROUP


def test_a_row_does_not_depend_on_the_others(machine: Machine) -> None:
    weight, x, _ = make("int4", 32, 288, 4, machine.device)
    together = machine.call(product, weight, x, torch.float32)
    other = QuantizedRows(x.codes.flip(0).contiguous(), x.scales.flip(0).contiguous(), x.sums.flip(0).contiguous())
    assert torch.equal(machine.call(product, weight, other, torch.float32).flip(0), together)
