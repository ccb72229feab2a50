"""Experts from their blobs on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor

from strata.kernels.experts import blobs
from strata.kernels.experts.blobs import MAX_FEW
from strata.kernels.layer import Routed
from strata.kernels.matrix import SILU, Activation
from strata.kernels.own.triton import own
from strata.kernels.rows import dequantize_rows, quantize_rows
from tests.kernels.conftest import Machine
from tests.kernels.expert_cases import Shape, make_layer, make_layout

# Relative norm: the activations of down are rounded to 8 bits in groups, or with the weights to bf16, which the
# interpreter cuts off where a GPU rounds.
TOLERANCE = 2.5e-2

PATHS = [
    pytest.param(2, id="a pair at a time"),
    pytest.param(MAX_FEW + 1, id="tensor cores"),
]


def choices(tokens: int, experts: int, top_k: int, device: str) -> tuple[Tensor, Tensor]:
    """Half of the tokens take the same experts."""
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    ids[: tokens // 2] = ids[0].clone()
    return ids.int().to(device), torch.rand(tokens, top_k).to(device)


def run(
    shape: Shape,
    tokens: int,
    top_k: int,
    activation: Activation,
    device: str,
    away: bool = False,
    in_host: bool = False,
    max_few: int = MAX_FEW,
) -> tuple[Tensor, Tensor]:
    """What the experts add to x, and what they should. away: the first token's first expert is elsewhere. in_host:
    every second one is in host memory that a card reads."""
    torch.manual_seed(tokens)
    layer = make_layer(shape, device)
    ids, shares = choices(tokens, shape.experts, top_k, device)
    here = torch.ones(shape.experts, dtype=torch.bool, device=device)
    if away:
        here[ids[0, 0].item()] = False
    x, inner = torch.randn(2, tokens, shape.hidden).to(device)
    rows = quantize_rows(inner) if tokens <= max_few else inner.bfloat16()
    seen = dequantize_rows(rows) if tokens <= max_few else rows
    expected, addresses = layer.expected(seen, ids, shares, activation, here).cpu(), layer.addresses.clone()
    if in_host:
        hosted = torch.empty(layer.blobs.shape, dtype=torch.uint8, pin_memory=device == "cuda").copy_(layer.blobs)
        addresses[1::2] += hosted.data_ptr() - layer.blobs.data_ptr()
        layer.blobs[1::2] = 0xFF
    _poison(device)
    step = blobs.prepare(layer.layout, addresses * here, activation, max_few)
    with _few_programs(device):
        found = step(Routed(ids, shares, rows), x.clone()) - x
    return found.cpu(), expected


@contextmanager
def _few_programs(device: str) -> Iterator[None]:
    """The interpreter takes long for each of many."""
    tiles = blobs.DOWN if device == "cuda" else {kind: replace(tile, rows=32) for kind, tile in blobs.DOWN.items()}
    with mock.patch.object(blobs, "DOWN", tiles):
        yield


def _poison(device: str) -> None:
    """What the allocator hands out next is NaN."""
    if device == "cuda":
        torch.full((1 << 24,), float("nan"), device=device)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("tokens", PATHS)
@pytest.mark.parametrize("kind", ["int4", "mxfp4", "int8", "bf16"])
def test_every_format(machine: Machine, kind: str, tokens: int) -> None:
    found, expected = machine.call(run, Shape(kind, 64, 32, 3), tokens, 2, SILU, machine.device)
    assert relative(found, expected) < TOLERANCE


@pytest.mark.parametrize("tokens", PATHS)
@pytest.mark.parametrize("biases", ["BF16", "F32"])
def test_biases_and_clamped_activation(machine: Machine, biases: str, tokens: int) -> None:
    shape = Shape("mxfp4", 64, 32, 3, biases)
    found, expected = machine.call(run, shape, tokens, 2, Activation(0.5), machine.device)
    assert relative(found, expected) < TOLERANCE


@pytest.mark.parametrize("tokens", PATHS)
def test_an_expert_elsewhere_adds_nothing(machine: Machine, tokens: int) -> None:
    shape = Shape("int4", 64, 32, 3, "BF16")
    found, expected = machine.call(run, shape, tokens, 2, SILU, machine.device, away=True)
    assert relative(found, expected) < TOLERANCE


@pytest.mark.parametrize("tokens", PATHS)
@pytest.mark.parametrize("kind", ["int4", "bf16"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_add_up_to_all_experts(machine: Machine, count: int, kind: str, tokens: int) -> None:
    """Each has addresses of its own ones, and one of nobody."""
    found, expected = machine.call(run_ranks, Shape(kind, 64, 32, 5, "BF16"), tokens, 3, count, machine.device)
    assert relative(found.sum(0), expected) < TOLERANCE
    assert all(part.norm() > 0.05 * expected.norm() for part in found)


def run_ranks(shape: Shape, tokens: int, top_k: int, count: int, device: str) -> tuple[Tensor, Tensor]:
    """What each rank's experts add to zeros, and what they should together."""
    torch.manual_seed(tokens)
    layer = make_layer(shape, device)
    ids, shares = choices(tokens, shape.experts, top_k, device)
    inner = torch.randn(tokens, shape.hidden).to(device)
    rows = quantize_rows(inner) if tokens <= MAX_FEW else inner.bfloat16()
    seen = dequantize_rows(rows) if tokens <= MAX_FEW else rows
    here = torch.ones(shape.experts, dtype=torch.bool, device=device)
    expected, found = layer.expected(seen, ids, shares, SILU, here).cpu(), []
    for index in range(count):
        mine = layer.addresses[index::count]
        addresses = torch.cat([mine, torch.zeros(1 if count > 1 else 0, dtype=torch.int64, device=device)])
        _poison(device)
        step = blobs.prepare(layer.layout, addresses, SILU)
        with _few_programs(device):
            routed = Routed(own(ids, index, count, len(mine)), shares, rows)
            found.append(step(routed, torch.zeros(tokens, shape.hidden, device=device)).cpu())
    return torch.stack(found), expected


@pytest.mark.parametrize("tokens", PATHS)
def test_one_launch_reads_experts_in_both_memories(machine: Machine, tokens: int) -> None:
    shape = Shape("int4", 64, 32, 3)
    found, expected = machine.call(run, shape, tokens, 2, SILU, machine.device, in_host=True)
    assert relative(found, expected) < TOLERANCE


@pytest.mark.parametrize("tokens", PATHS)
def test_columns_that_fill_no_superblock(machine: Machine, tokens: int) -> None:
    found, expected = machine.call(run, Shape("int4", 288, 32, 1), tokens, 1, SILU, machine.device)
    assert relative(found, expected) < TOLERANCE


@pytest.mark.parametrize(("tokens", "max_few"), [pytest.param(3, 2, id="earlier"), pytest.param(33, 33, id="later")])
def test_tensor_cores_from_another_number_of_tokens_on(machine: Machine, tokens: int, max_few: int) -> None:
    # Each way takes only its own kind of rows.
    found, expected = machine.call(run, Shape("int4", 64, 32, 1), tokens, 1, SILU, machine.device, max_few=max_few)
    assert relative(found, expected) < TOLERANCE


@pytest.mark.parametrize("tokens", [1, 3, 17, MAX_FEW, 300])
@pytest.mark.parametrize(
    ("shape", "top_k", "activation"),
    [
        pytest.param(Shape("int4", 2048, 768, 128), 8, SILU, id="Qwen3-30B-A3B"),
        pytest.param(Shape("mxfp4", 2880, 2880, 16, "BF16"), 4, Activation(7.0), id="gpt-oss"),
        pytest.param(Shape("int8", 2048, 1408, 60), 4, SILU, id="Qwen1.5-MoE"),
        pytest.param(Shape("int4", 4096, 14336, 8), 2, SILU, id="Mixtral"),
        pytest.param(Shape("bf16", 2048, 768, 16), 8, SILU, id="bf16"),
    ],
)
def test_shapes_of_models(shape: Shape, top_k: int, activation: Activation, tokens: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    found, expected = run(shape, tokens, top_k, activation, "cuda", away=True)
    assert relative(found, expected) < TOLERANCE
    again, _ = run(shape, tokens, top_k, activation, "cuda", away=True)
    assert torch.equal(found, again), "the same inputs give the same bits"


def test_which_blobs_are_read() -> None:
    for shape, readable in [
        (Shape("int4", 96, 64, 1), True),
        (Shape("bf16", 96, 64, 1), True),
        (Shape("bf16", 48, 64, 1), False),
    ]:
        assert blobs.reads(make_layout(shape)) is readable
    layout = make_layout(Shape("int4", 96, 64, 1))
    assert not blobs.reads(replace(layout, down=replace(layout.down, kind="int8"))), "tiles have one format"
