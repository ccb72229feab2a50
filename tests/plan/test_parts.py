"""Bytes of public models, part by part."""

from __future__ import annotations

from math import prod

import pytest

from strata.config.engine import DTYPES
from strata.plan.parts import sum_parts, weight_parts
from strata.plan.shape import Role, TensorSpec
from tests.plan.configs import public

GB = 1e9


def at_4_25_bits(spec: TensorSpec) -> float:
    """As plain groups of 32 with one fp16 scale each are; norms and routers, which are small, left out."""
    return 0.0 if spec.role in (Role.VECTOR, Role.ROUTER) else prod(spec.shape) * 4.25 / 8


@pytest.mark.parametrize(
    ("name", "active", "other", "all_experts", "expert"),
    [
        ("qwen3-30b-a3b", 0.96, 0.81, 15.4, 2.5),
        ("gpt-oss-120b", 1.90, 1.12, 60.9, 13.2),
        ("mixtral-8x7b", 5.99, 0.85, 24.0, 94),
        ("qwen3-235b-a22b", 7.54, 4.22, 121, 10),
    ],
)
def test_the_design_s_table_of_bytes(name: str, active: float, other: float, all_experts: float, expert: float) -> None:
    """Its "other weights" hold all of the embedding. Three digits are given there; the last one may be cut off."""
    parts = sum_parts(public(name), at_4_25_bits)
    assert parts.experts_per_token_bytes / GB == pytest.approx(active, rel=0.01)
    assert parts.shared / GB == pytest.approx(other, rel=0.01)
    assert parts.experts / GB == pytest.approx(all_experts, rel=0.01)
    assert parts.expert / 1e6 == pytest.approx(expert, rel=0.01)


def test_our_int4_takes_4_63_bits_and_int8_heads() -> None:
    """What a store really holds: 4.63 bits where rows have whole superblocks, 8.5 for embedding and head."""
    model = public("qwen3-30b-a3b")
    ours, plain = weight_parts(model, "int4"), sum_parts(model, lambda spec: prod(spec.shape) * 4.625 / 8)
    assert ours.expert == pytest.approx(plain.expert, rel=0.001)
    assert ours.attention == pytest.approx(plain.attention, rel=0.001)
    assert ours.head == ours.embedding == 151936 * 2048 * 8.5 / 8
    assert ours.router == 48 * 128 * 2048 * 2


@pytest.mark.parametrize(
    "name", ["qwen3-30b-a3b", "gpt-oss-120b", "mixtral-8x7b", "qwen3-235b-a22b", "qwen3-8b", "qwen3-next-80b-a3b"]
)
def test_bf16_is_twice_the_published_number_of_parameters(name: str) -> None:
    published = {
        "qwen3-30b-a3b": 30.53,
        "gpt-oss-120b": 116.83,
        "mixtral-8x7b": 46.70,
        "qwen3-235b-a22b": 235.09,
        "qwen3-8b": 8.19,
        "qwen3-next-80b-a3b": 79.674,
    }
    assert weight_parts(public(name), "bf16").total / 2e9 == pytest.approx(published[name], abs=0.006)


def test_a_table_of_n_grams_is_on_disk() -> None:
    """Of Qwen3.8-Flash-Next, published as 125 billion parameters and a table of 51 billion, 6 billion active."""
    parts = weight_parts(public("qwen3.8-flash-next"), "bf16")
    assert parts.total / 2e9 == pytest.approx(125.74, abs=0.006)
    assert parts.ngrams == 2 * 320_001_536 * 160
    assert parts.total == parts.shared + parts.experts, "it is not loaded"
    assert (parts.shared_per_token + parts.experts_per_token_bytes) / 2e9 == pytest.approx(6.67, abs=0.01)


def test_residual_streams_and_n_grams_have_parts_of_their_own() -> None:
    parts = weight_parts(public("qwen3.8-flash-next"), "int4")
    mixer = 10240 * (320 + 320)
    assert parts.mixers == (97 * mixer + 96 * 4 * 10240) * 8.5 / 8, "8 bits at least"
    plain = weight_parts(public("qwen3.8-flash-next"), "bf16")
    shared_experts, ngrams = 48 * 3 * 640 * 2560, 2560 * (10240 + 2560)
    assert plain.dense == 2 * (shared_experts + ngrams)


def test_linear_attention_is_attention() -> None:
    """Of Qwen3-Next, 36 layers of it and 12 of full attention with gates; A, dt and convolution count like norms do in
    attention."""
    model = public("qwen3-next-80b-a3b")
    linear = 2048 * (12288 + 64 + 4096) + 8192 * 4 + 32 + 32 + 128
    full = 2048 * (2 * 4096 + 2 * 512 + 4096) + 2 * 256
    parts = weight_parts(model, "bf16")
    assert parts.attention == 2 * (36 * linear + 12 * full)
    assert parts.norms == 2 * 2048 * (2 * 48 + 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_parts_add_up(dtype: str) -> None:
    parts = weight_parts(public("gpt-oss-120b"), dtype)
    assert parts.total == parts.shared + parts.num_experts * parts.expert
    assert parts.num_experts == 36 * 128
    assert parts.experts_per_token_bytes == 36 * 4 * parts.expert
    assert parts.dense == 0


def test_a_token_reads_one_row_of_an_embedding_unless_it_is_the_head() -> None:
    untied = weight_parts(public("qwen3-8b"), "bf16")
    assert untied.shared_per_token == untied.shared - untied.embedding + 2 * 4096
    tied = sum_parts(public("qwen3-8b"), lambda spec: 0.0 if spec.name == "lm_head.weight" else 1.0)
    assert tied.shared_per_token == tied.shared
