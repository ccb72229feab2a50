"""Which tensors an architecture needs, and what is said when they are not there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strata.config import LinearAttentionConfig, ModelConfig, read_hf_config
from strata.errors import CheckpointError
from strata.plan.shape import Role, TensorSpec, check, needed, stored_format
from tests.store.checkpoints import config


def model(**changes: Any) -> ModelConfig:
    return read_hf_config(config(**changes), origin="test")


def shapes(of: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {spec.name: spec.shape for spec in needed(of)}


def test_a_tied_head_is_not_needed() -> None:
    tied, untied = shapes(model()), shapes(model(tie_word_embeddings=False))
    assert set(untied) - set(tied) == {"lm_head.weight"}
    assert untied["lm_head.weight"] == untied["model.embed_tokens.weight"]


def test_biases_are_needed_where_the_config_says() -> None:
    plain = set(shapes(model()))
    assert not any(name.endswith(".bias") for name in plain)
    attention = set(shapes(model(attention_bias=True))) - plain
    mlp = set(shapes(model(mlp_bias=True))) - plain
    assert {name.split(".")[-2] for name in attention} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert {name.split(".")[-2] for name in mlp} == {"gate_proj", "up_proj", "down_proj"}


def test_shapes_follow_heads_and_head_dim() -> None:
    found = shapes(model(num_attention_heads=6, num_key_value_heads=2, head_dim=32, hidden_size=64))
    assert found["model.layers.0.self_attn.q_proj.weight"] == (192, 64)
    assert found["model.layers.0.self_attn.k_proj.weight"] == (64, 64)
    assert found["model.layers.0.self_attn.o_proj.weight"] == (64, 192)


def test_all_is_well() -> None:
    assert check(model(), shapes(model()), origin="m") == needed(model())


def test_what_follows_from_the_config_is_ignored() -> None:
    extra = {
        "lm_head.weight": (262, 64),  # of a tied head
        "model.layers.1.self_attn.rotary_emb.inv_freq": (8,),
        "model.rotary_emb.inv_freq": (8,),
    }
    check(model(), shapes(model()) | extra, origin="m")


def test_a_hybrid_model_needs_each_layer_s_own_kind_of_attention() -> None:
    hybrid = replace(
        model(),
        gated_attention=True,
        linear_attention=LinearAttentionConfig(2, 4, 8, 16, 3),
        linear_layers=(True, False),
    )
    found = shapes(hybrid)
    linear = {name.rpartition("linear_attn.")[2]: shape for name, shape in found.items() if "linear_attn" in name}
    assert linear == {
        "in_proj_qkv.weight": (96, 64),
        "in_proj_z.weight": (64, 64),
        "in_proj_b.weight": (4, 64),
        "in_proj_a.weight": (4, 64),
        "conv1d.weight": (96, 1, 3),
        "A_log": (4,),
        "dt_bias": (4,),
        "norm.weight": (16,),
        "out_proj.weight": (64, 64),
    }
    assert {name.split(".")[2] for name in found if "self_attn" in name} == {"1"}
    assert found["model.layers.1.self_attn.gate_proj.weight"] == found["model.layers.1.self_attn.q_proj.weight"]


@pytest.mark.parametrize("architecture", ["Qwen3NextForCausalLM", "LlamaForCausalLM"])
def test_layers_that_guess_further_tokens_are_ignored_where_an_architecture_has_them(architecture: str) -> None:
    named = replace(model(), architecture=architecture)
    extra = shapes(named) | {"mtp.layers.0.self_attn.q_proj.weight": (64, 64)}
    if architecture == "Qwen3NextForCausalLM":
        check(named, extra, origin="m")
    else:
        with pytest.raises(CheckpointError, match="unknown tensors: mtp"):
            check(named, extra, origin="m")


def test_every_fault_is_named_at_once() -> None:
    found = shapes(model())
    del found["model.layers.1.mlp.up_proj.weight"]
    found["model.norm.weight"] = (63,)
    found["model.layers.2.mlp.up_proj.weight"] = (96, 64)  # the config says two layers
    with pytest.raises(CheckpointError) as caught:
        check(model(), found, origin="here/m.gguf")
    assert str(caught.value) == (
        "here/m.gguf does not fit a LlamaForCausalLM of its config: "
        "missing tensors: model.layers.1.mlp.up_proj.weight; "
        "wrong shapes: model.norm.weight is [63], needed is [64]; "
        "unknown tensors: model.layers.2.mlp.up_proj.weight"
    )


def test_long_lists_of_names_are_cut() -> None:
    with pytest.raises(CheckpointError, match=r"missing tensors: model\.embed_tokens\.weight, .* and 12 more$"):
        check(model(), {}, origin="m")


@pytest.mark.parametrize(
    ("role", "shape", "expected"),
    [
        (Role.MATRIX, (8, 64), {"bf16": "bf16", "int8": "int8", "int4": "int4"}),
        (Role.EMBEDDING, (8, 64), {"bf16": "bf16", "int8": "int8", "int4": "int8"}),  # never below 8 bits
        (Role.MATRIX, (8, 48), {"bf16": "bf16", "int8": "bf16", "int4": "bf16"}),  # no whole groups of 32
        (Role.DECAY, (8, 64), {"bf16": "bf16", "int8": "bf16", "int4": "bf16"}),
        (Role.VECTOR, (64,), {"bf16": None, "int8": None, "int4": None}),  # as in the source
    ],
)
def test_bits_follow_the_role(role: Role, shape: tuple[int, ...], expected: dict[str, str | None]) -> None:
    spec = TensorSpec("x", shape, role)
    assert {dtype: stored_format(spec, dtype) for dtype in expected} == expected
