"""Every variant of the kernels against float64."""

from __future__ import annotations

import pytest
import torch

from strata.native.layout import FORMATS, TileLayout
from strata.native.library import VARIANTS, variants
from strata.native.pool import ExpertPool, PoolOptions
from tests.native.experts import Expert, expected

NUM_EXPERTS, TOP_K = 6, 3
# Relative error of the whole layer. int8 activations: 1.2e-2 measured, as the rounding of two products in turn gives;
# int16 and bf16 weights (float32 activations): what float32 sums leave.
BOUNDS = {"int8": 1.6e-2, "int16": 2e-4}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in variants():
        pytest.skip(f"this CPU has no {name}")
    return name


def layer(layout: TileLayout, tokens: int, options: PoolOptions, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(computed, expected) for random experts and tokens."""
    experts = {i: Expert.random(layout, seed=seed * 100 + i) for i in range(NUM_EXPERTS)}
    blobs = [expert.tiles() for expert in experts.values()]
    table = torch.tensor([[0] * NUM_EXPERTS, [blob.data_ptr() for blob in blobs]])
    generator = torch.Generator().manual_seed(seed)
    # Each group of its own size, as normed activations are not.
    x = torch.randn(tokens, layout.hidden, generator=generator)
    x *= torch.rand(tokens, layout.hidden // 8, generator=generator).repeat_interleave(8, 1) * 2
    x = x.to(getattr(torch, options.number))
    ids = torch.stack([torch.randperm(NUM_EXPERTS, generator=generator)[:TOP_K] for _ in range(tokens)]).int()
    ids[torch.rand(ids.shape, generator=generator) < 0.2] = -1
    weights = torch.rand(tokens, TOP_K, generator=generator)
    y = torch.full((tokens, layout.hidden), float("nan"))
    with ExpertPool(layout, options) as pool:
        pool.set_table(table.data_ptr(), 2, NUM_EXPERTS, (table, blobs))
        pool.run(1, tokens, x.data_ptr(), ids.data_ptr(), weights.data_ptr(), y.data_ptr())
    limit = options.limit if options.gating == "clamped_swiglu" else None
    return y, expected(experts, x, ids, weights, limit)


def relative_error(computed: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((computed.double() - wanted).norm() / wanted.norm())


def options(
    variant: str, activations: str, *, gating: str = "silu", number: str = "float32", prefetch: int = 0
) -> PoolOptions:
    return PoolOptions(
        top_k=TOP_K, variant=variant, activations=activations, gating=gating, limit=7.0, number=number,
        prefetch_bytes=prefetch, cores=[0, 1],
    )  # fmt: skip


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_one_token(variant: str, format_: str, activations: str) -> None:
    computed, wanted = layer(TileLayout(format_, 320, 96), 1, options(variant, activations), seed=1)
    bound = BOUNDS["int16" if format_ == "bf16" else activations]
    assert relative_error(computed, wanted) < bound


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_many_tokens(variant: str, format_: str, activations: str) -> None:
    layout = TileLayout(format_, 288, 544)  # rows and inputs that are no whole tiles
    computed, wanted = layer(layout, 13, options(variant, activations, prefetch=2368), seed=2)
    bound = BOUNDS["int16" if format_ == "bf16" else activations]
    assert max(relative_error(c, w) for c, w in zip(computed, wanted, strict=True) if w.norm()) < bound * 1.5


@pytest.mark.parametrize("format_", ["mxfp4", "int4", "bf16"])
def test_biases_and_clamped_swiglu(variant: str, format_: str) -> None:
    layout = TileLayout(format_, 96, 64, bias=True)
    computed, wanted = layer(layout, 3, options(variant, "int16", gating="clamped_swiglu"), seed=3)
    assert relative_error(computed, wanted) < BOUNDS["int16"]


@pytest.mark.parametrize("number", ["float32", "bfloat16", "float16"])
def test_types_of_x(variant: str, number: str) -> None:
    computed, wanted = layer(TileLayout("int4", 64, 64), 2, options(variant, "int16", number=number), seed=4)
    assert relative_error(computed, wanted) < BOUNDS["int16"]


def test_widths_that_are_no_groups(variant: str) -> None:
    computed, wanted = layer(TileLayout("bf16", 40, 24), 2, options(variant, "int8"), seed=5)
    assert relative_error(computed, wanted) < BOUNDS["int16"]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_token_gets_the_same_numbers_in_any_company(variant: str, format_: str) -> None:
    layout = TileLayout(format_, 320, 96)
    experts = [Expert.random(layout, seed=i) for i in range(NUM_EXPERTS)]
    blobs = [expert.tiles() for expert in experts]
    table = torch.tensor([[blob.data_ptr() for blob in blobs]])
    x = torch.randn(11, layout.hidden)
    ids = torch.stack([torch.randperm(NUM_EXPERTS)[:TOP_K] for _ in range(11)]).int()
    weights = torch.rand(11, TOP_K)
    together, alone = torch.empty(2, 11, layout.hidden)
    with ExpertPool(layout, options(variant, "int8")) as pool:
        pool.set_table(table.data_ptr(), 1, NUM_EXPERTS, (table, blobs))
        pool.run(0, 11, x.data_ptr(), ids.data_ptr(), weights.data_ptr(), together.data_ptr())
        for t in range(11):
            pool.run(0, 1, x[t].data_ptr(), ids[t].data_ptr(), weights[t].data_ptr(), alone[t].data_ptr())
    assert torch.equal(together, alone)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("format_", FORMATS)
def test_what_is_not_finite_stays_visible(variant: str, bad: float, format_: str) -> None:
    layout = TileLayout(format_, 64, 64)
    expert = Expert.random(layout, seed=0)
    blob = expert.tiles()
    table = torch.tensor([[blob.data_ptr()]])
    x = torch.randn(2, 64)
    x[0, 37] = bad
    ids, weights, y = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1), torch.zeros(2, 64)
    with ExpertPool(layout, PoolOptions(top_k=1, variant=variant, number="float32", cores=[0])) as pool:
        pool.set_table(table.data_ptr(), 1, 1, (table, blob))
        pool.run(0, 2, x.data_ptr(), ids.data_ptr(), weights.data_ptr(), y.data_ptr())
    assert not y[0].isfinite().any()
    assert y[1].isfinite().all()


def test_the_fastest_variant_is_taken_by_itself() -> None:
    with ExpertPool(TileLayout("int4", 64, 64), PoolOptions(top_k=1, cores=[0])) as pool:
        assert pool.variant == variants()[-1]
