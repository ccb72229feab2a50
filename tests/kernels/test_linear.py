"""x @ W.T + b in every format, against float64."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from strata import quant
from strata.kernels.dequantize.reference import dequantize
from strata.kernels.linear import cpu, reference
from strata.plan.parts import PREPARED_BITS

BF16_ERROR = 6e-3  # relative norm: activations, weights' steps and result are rounded to 8 bits each


def make(
    kind: str, rows: int, cols: int, tokens: int, dtype: torch.dtype
) -> tuple[quant.QuantizedTensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A packed weight, a bias, activations, and the product of exactly these in float64."""
    torch.manual_seed(rows + cols + tokens)
    packed = quant.get(kind).pack(torch.randn(rows, cols) * 0.05 + 0.01)
    bias, x = torch.randn(rows), torch.randn(tokens, cols).to(dtype)
    expected = x.double() @ quant.get(kind).unpack(packed).double().T + bias.to(dtype).double()
    return packed, bias, x, expected


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4", "mxfp4"])
def test_reference_is_exact(kind: str) -> None:
    packed, bias, x, expected = make(kind, 48, 288, 5, torch.float32)
    assert relative(reference.linear(x, kind, packed.parts, bias), expected) < 1e-6
    assert relative(reference.prepare(kind, packed.parts, bias, torch.float32)(x), expected) < 1e-6


@pytest.mark.parametrize("has_bias", [False, True])
def test_reference_in_pieces(monkeypatch: pytest.MonkeyPatch, has_bias: bool) -> None:
    packed, bias, x, expected = make("int4", 50, 288, 5, torch.float32)
    sizes: list[int] = []

    def noted(kind: str, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        sizes.append(parts["codes"].shape[0])
        return dequantize(kind, parts, dtype)

    monkeypatch.setattr(reference, "MAX_DEQUANTIZED", 20 * 288)
    monkeypatch.setattr(reference, "dequantize", noted)
    found = reference.linear(x, "int4", packed.parts, bias if has_bias else None)
    assert sizes == [20, 20, 10]
    assert relative(found, expected if has_bias else expected - bias.double()) < 1e-6


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4", "mxfp4"])
@pytest.mark.parametrize(
    ("rows", "cols"),
    [
        pytest.param(128, 256, id="whole tiles"),
        pytest.param(70, 96, id="rows that fill no tile"),
        pytest.param(192, 576, id="columns that fill no superblock"),
    ],
)
@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(1, id="decode"),
        pytest.param(cpu.MAX_DIRECT_ROWS["int8"], id="most rows of the direct int8 product"),
        pytest.param(cpu.MAX_DIRECT_ROWS["int4"], id="most rows of the direct int4 product"),
        pytest.param(cpu.MAX_DIRECT_ROWS["int4"] + 1, id="dequantised"),
    ],
)
def test_cpu_product(kind: str, rows: int, cols: int, tokens: int) -> None:
    packed, bias, x, expected = make(kind, rows, cols, tokens, torch.bfloat16)
    found = cpu.prepare(kind, packed.parts, bias, torch.bfloat16)(x)
    assert found.shape == (tokens, rows)
    assert relative(found, expected) < BF16_ERROR


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4", "mxfp4"])
def test_cpu_product_without_bias(kind: str) -> None:
    packed, bias, x, expected = make(kind, 64, 64, 3, torch.bfloat16)
    found = cpu.prepare(kind, packed.parts, None, torch.bfloat16)(x)
    assert relative(found, expected - bias.bfloat16().double()) < BF16_ERROR


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4", "mxfp4"])
@pytest.mark.parametrize("tokens", [1, 2, cpu.MAX_DIRECT_ROWS["int4"] + 1])
def test_a_cpu_that_multiplies_no_bf16_does_it_in_float32(
    kind: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "multiplies_bf16", lambda: False)
    packed, bias, x, expected = make(kind, 70, 96, tokens, torch.bfloat16)
    found = cpu.prepare(kind, packed.parts, bias, torch.bfloat16)(x)
    assert found.dtype == torch.bfloat16
    assert relative(found, expected) < BF16_ERROR


@pytest.mark.parametrize("kind", PREPARED_BITS)
def test_a_plan_knows_what_the_cpu_keeps_of_a_weight(kind: str) -> None:
    rows, cols = 128, 256
    linear = cpu._TiledLinear(kind, make(kind, rows, cols, 1, torch.bfloat16)[0].parts, None)
    assert 8 * (linear.tiles.nbytes + linear.steps.nbytes) == PREPARED_BITS[kind] * rows * cols


def test_unknown_order_of_nibbles_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_tile_rows", lambda: None)
    packed, bias, x, expected = make("int4", 70, 96, 3, torch.bfloat16)
    assert relative(cpu.prepare("int4", packed.parts, bias, torch.bfloat16)(x), expected) < BF16_ERROR


def test_the_order_of_nibbles_is_known_where_it_should_be() -> None:
    expected = {"AVX512": 64, "AVX2": 32}
    assert cpu._tile_rows() == expected.get(torch.backends.cpu.get_cpu_capability())
