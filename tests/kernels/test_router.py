"""The GPU's router against the plain one."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from strata.kernels.experts.blobs import MAX_FEW
from strata.kernels.matrix import Matrix, Norm
from strata.kernels.router.reference import route
from strata.kernels.router.triton import choose, prepare, score
from strata.kernels.rows import QuantizedRows, dequantize_rows
from tests.kernels.conftest import Machine


def logits(tokens: int, experts: int, device: str) -> Tensor:
    return 3 * torch.randn(tokens, experts, generator=torch.Generator().manual_seed(experts)).to(device)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("experts", "top_k"),
    [
        pytest.param(8, 2, id="Mixtral"),
        pytest.param(60, 4, id="experts that are no power of two"),
        pytest.param(512, 10, id="many experts"),
        pytest.param(16, 16, id="all of them"),
    ],
)
def test_choose(machine: Machine, experts: int, top_k: int, normalize: bool) -> None:
    values = logits(5, experts, machine.device)
    ids, shares = machine.call(choose, values, top_k, normalize)
    expected, expected_ids = route(values, top_k, normalize)
    assert (ids.dtype, shares.dtype) == (torch.int32, torch.float32)
    assert torch.equal(ids.long(), expected_ids)
    assert torch.allclose(shares, expected, rtol=1e-5, atol=1e-12)


def test_of_equal_scores_the_lower_id_comes_first(machine: Machine) -> None:
    values = torch.tensor([[0.0, 2.0, -0.0, 2.0, -1.0, 2.0]], device=machine.device)
    ids, _ = machine.call(choose, values, 5, True)
    assert ids.tolist() == [[1, 3, 5, 0, 2]]


def test_what_is_no_number_names_an_expert_all_the_same(machine: Machine) -> None:
    values = torch.full((2, 6), float("nan"), device=machine.device)
    values[1, 4] = 1.0
    ids, _ = machine.call(choose, values, 3, True)
    assert ids.tolist() == [[0, 1, 2], [4, 0, 1]]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("tokens", "hidden"), [pytest.param(1, 64, id="one token"), pytest.param(3, 96, id="no power of two")]
)
def test_score(machine: Machine, tokens: int, hidden: int, has_bias: bool) -> None:
    torch.manual_seed(hidden)
    x, weight = 3 * torch.randn(tokens, hidden), 1 + 0.3 * torch.randn(hidden)
    router, bias = torch.randn(10, hidden).bfloat16(), torch.randn(10) if has_bias else None
    arguments = [None if item is None else item.to(machine.device) for item in (x, weight, router, bias)]
    found, rows = machine.call(score, arguments[0], arguments[1], 1e-6, arguments[2], arguments[3])
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    expected = normed @ router.double().T + (0 if bias is None else bias)
    assert torch.allclose(found.cpu().double(), expected, rtol=1e-5, atol=1e-4)
    assert float((dequantize_rows(rows).cpu() - normed).norm() / normed.norm()) < 1e-2


def inner(tokens: int, max_few: int, device: str) -> QuantizedRows | Tensor:
    norm = Norm(torch.ones(64, device=device), 1e-6)
    router = Matrix("bf16", {"weight": torch.eye(4, 64, device=device).bfloat16()})
    routed = prepare(norm, router, 2, True, max_few)(torch.randn(tokens, 64, device=device))
    assert routed.ids.shape == (tokens, 2)
    return cast("QuantizedRows | Tensor", routed.inner)


def test_few_may_be_more(machine: Machine) -> None:
    assert isinstance(machine.call(inner, MAX_FEW + 1, MAX_FEW + 1, machine.device), QuantizedRows)
    if machine.device == "cuda":  # the other way goes through cuBLAS
        assert isinstance(inner(3, 2, machine.device), Tensor)


@pytest.mark.parametrize("tokens", [3, 200])
def test_few_and_many_tokens(tokens: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    torch.manual_seed(tokens)
    x, weight = torch.randn(tokens, 2880, device="cuda"), torch.rand(2880, device="cuda")
    router, bias = torch.randn(32, 2880, device="cuda").bfloat16() / 20, torch.randn(32, device="cuda")
    routed = prepare(Norm(weight, 1e-6), Matrix("bf16", {"weight": router}, bias), 4, True)(x)
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    scores = normed @ router.double().T + bias
    # Near ties may go either way: the chosen ones' scores are as good.
    found, expected = scores.gather(1, routed.ids.long()), scores.topk(4).values
    assert torch.allclose(found.sort(descending=True).values, expected, atol=3e-2)
    assert torch.allclose(routed.shares.double(), found.softmax(-1), atol=1e-2)
