"""The steps on a GPU that are made of dense products, against the plain ones in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from strata import quant
from strata.kernels.cuda import CudaKernels
from strata.kernels.layer import Kernels
from strata.kernels.matrix import SILU, Activation, Matrix, Norm
from strata.kernels.operations import REFERENCE
from strata.kernels.rows import MAX_QUANTIZED_ROWS, QuantizedRows, dequantize_rows
from tests.kernels.conftest import Machine

PLAIN = Kernels(REFERENCE, torch.float32)
# Relative norms. Activations and weights of a product are rounded to 8 bits or bf16; two such follow each other where
# an activation lies between. The interpreter cuts off where a GPU rounds to bf16.
PRODUCT, GATED = 1.2e-2, 3e-2


def matrix(kind: str, rows: int, cols: int, bias: bool = False) -> Matrix:
    parts = quant.get(kind).pack(torch.randn(rows, cols) / cols**0.5).parts
    return Matrix(kind, parts, torch.randn(rows) if bias else None)


def moved(tensor: torch.Tensor | None, device: str) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def on(device: str, matrices: list[Matrix]) -> list[Matrix]:
    return [Matrix(m.kind, {n: t.to(device) for n, t in m.parts.items()}, moved(m.bias, device)) for m in matrices]


def norm_on(device: str, norm: Norm) -> Norm:
    return replace(norm, weight=norm.weight.to(device))


def run(step: str, prepared_of: tuple[Any, ...], called_with: tuple[Any, ...]) -> Any:
    """One step of ``CudaKernels``."""
    return getattr(CudaKernels(REFERENCE, torch.bfloat16), step)(*prepared_of)(*called_with)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu().double() - expected.double()).norm() / expected.double().norm())


TOKENS = [
    pytest.param(2, id="few rows"),
    pytest.param(MAX_QUANTIZED_ROWS + 1, id="more rows"),
    pytest.param(130, id="so many that weights are unpacked before"),
]


@pytest.mark.parametrize("kind", ["int8", "bf16", "int4"])
def test_embedding(machine: Machine, kind: str) -> None:
    torch.manual_seed(0)
    table, ids = matrix(kind, 64, 96), torch.tensor([3, 60, 3])
    found = machine.call(run, "embedding", tuple(on(machine.device, [table])), (ids.to(machine.device),))
    assert torch.equal(found.cpu(), PLAIN.embedding(table)(ids))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    "kinds", [("int4", "int4"), ("bf16",), pytest.param(("int4", "bf16", "int8"), id="several formats")], ids="-".join
)
def test_norm_linear(machine: Machine, tokens: int, kinds: tuple[str, ...]) -> None:
    torch.manual_seed(tokens)
    norm, x = Norm(1 + 0.3 * torch.randn(96), 1e-6), 3 * torch.randn(tokens, 96)
    matrices = [matrix(kind, 40, 96, bias=True) for kind in kinds]
    found = machine.call(
        run, "norm_linear", (norm_on(machine.device, norm), on(machine.device, matrices)), (x.to(machine.device),)
    )
    assert found.dtype == torch.bfloat16
    assert relative(found, PLAIN.norm_linear(norm, matrices)(x)) < PRODUCT


@pytest.mark.parametrize("tokens", TOKENS[:2])
def test_logits_are_not_rounded(machine: Machine, tokens: int) -> None:
    torch.manual_seed(tokens)
    norm, x, head = Norm(torch.ones(96), 1e-6), torch.randn(tokens, 96), matrix("int8", 40, 96)
    found = machine.call(
        run_wide, norm_on(machine.device, norm), on(machine.device, [head]), x.to(machine.device)
    ).cpu()
    assert found.dtype == torch.float32
    assert (found != found.bfloat16().float()).any()
    assert relative(found, PLAIN.norm_linear(norm, [head])(x)) < PRODUCT


def run_wide(norm: Norm, matrices: list[Matrix], x: torch.Tensor) -> torch.Tensor:
    return CudaKernels(REFERENCE, torch.bfloat16).norm_linear(norm, matrices, wide=True)(x)


def test_no_row_needs_logits(machine: Machine) -> None:
    norm, head = Norm(torch.ones(96, device=machine.device), 1e-6), on(machine.device, [matrix("int8", 40, 96)])
    assert machine.call(run_wide, norm, head, torch.empty(0, 96, device=machine.device)).shape == (0, 40)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", ["int4", "bf16"])
@pytest.mark.parametrize("shares", [False, True])
def test_gated_mlp(machine: Machine, tokens: int, kind: str, shares: bool) -> None:
    """norm_gated, and linear_add with what it returns."""
    torch.manual_seed(tokens)
    norm, x = Norm(1 + 0.3 * torch.randn(96), 1e-6), 3 * torch.randn(tokens, 96)
    gate_up, down = [matrix(kind, 64, 96), matrix("int4", 64, 96)], matrix(kind, 96, 64, bias=True)
    activation = Activation(0.7) if shares else SILU
    share = torch.rand(tokens, 1) if shares else None
    gated = PLAIN.norm_gated(norm, gate_up, activation)(x)
    expected = PLAIN.linear_add(down)(gated, x.clone(), share)
    device = machine.device
    inner, out = machine.call(
        run_mlp, norm_on(device, norm), on(device, gate_up), on(device, [down])[0], activation, x.to(device),
        moved(share, device),
    )  # fmt: skip
    assert isinstance(inner, QuantizedRows) == (tokens <= MAX_QUANTIZED_ROWS)
    plain = dequantize_rows(inner) if isinstance(inner, QuantizedRows) else inner
    assert relative(plain, gated) < GATED
    assert out.dtype == torch.float32
    assert relative(out.cpu() - x, expected - x) < GATED


def run_mlp(
    norm: Norm, gate_up: list[Matrix], down: Matrix, activation: Activation, x: torch.Tensor, share: torch.Tensor | None
) -> tuple[Any, torch.Tensor]:
    kernels = CudaKernels(REFERENCE, torch.bfloat16)
    inner = kernels.norm_gated(norm, gate_up, activation)(x)
    return inner, kernels.linear_add(down)(inner, x.clone(), share)
