"""Foreign names to canonical ones."""

from __future__ import annotations

import pytest

from strata.errors import CheckpointError
from strata.store.sources import names
from strata.store.sources.names import Place

L = "model.layers.7"


@pytest.mark.parametrize(
    ("architecture", "stored", "shape", "expected"),
    [
        pytest.param(
            "MixtralForCausalLM",
            f"{L}.block_sparse_moe.experts.3.w2.weight",
            (8, 6),
            {f"{L}.mlp.experts.3.down_proj.weight": Place(f"{L}.block_sparse_moe.experts.3.w2.weight")},
            id="mixtral's first names",
        ),
        pytest.param(
            "MixtralForCausalLM",
            f"{L}.block_sparse_moe.gate.weight",
            (2, 8),
            {f"{L}.mlp.gate.weight": Place(f"{L}.block_sparse_moe.gate.weight")},
            id="mixtral's router",
        ),
        pytest.param(
            "LlamaForCausalLM",
            f"{L}.block_sparse_moe.gate.weight",
            (2, 8),
            {f"{L}.block_sparse_moe.gate.weight": Place(f"{L}.block_sparse_moe.gate.weight")},
            id="no other architecture has them",
        ),
        pytest.param(
            "Qwen3MoeForCausalLM",
            f"{L}.mlp.experts.gate_up_proj",
            (2, 6, 8),
            {
                f"{L}.mlp.experts.{expert}.{projection}.weight": Place(
                    f"{L}.mlp.experts.gate_up_proj", expert, rows=rows
                )
                for projection, rows in (("gate_proj", range(3)), ("up_proj", range(3, 6)))
                for expert in (0, 1)
            },
            id="fused: gate, then up",
        ),
        pytest.param(
            "GptOssForCausalLM",
            f"{L}.mlp.experts.gate_up_proj",
            (1, 8, 6),
            {
                f"{L}.mlp.experts.0.{projection}.weight": Place(f"{L}.mlp.experts.gate_up_proj", 0, True, rows)
                for projection, rows in (("gate_proj", range(0, 6, 2)), ("up_proj", range(1, 6, 2)))
            },
            id="gpt-oss: in turns, and transposed",
        ),
        pytest.param(
            "GptOssForCausalLM",
            f"{L}.mlp.router.bias",
            (4,),
            {f"{L}.mlp.gate.bias": Place(f"{L}.mlp.router.bias")},
            id="gpt-oss' router",
        ),
        pytest.param(
            "Qwen3MoeForCausalLM",
            f"{L}.mlp.experts.down_proj",
            (6, 8),
            {f"{L}.mlp.experts.down_proj": Place(f"{L}.mlp.experts.down_proj")},
            id="no stack without experts: reported as unknown",
        ),
        pytest.param(
            "Qwen3MoeForCausalLM",
            f"{L}.mlp.experts.down_proj",
            (10**12, 0, 8),
            {f"{L}.mlp.experts.down_proj": Place(f"{L}.mlp.experts.down_proj")},
            id="a damaged header may claim any number of empty experts",
        ),
    ],
)
def test_hugging_face(architecture: str, stored: str, shape: tuple[int, ...], expected: dict[str, Place]) -> None:
    assert names.huggingface(architecture, {stored: shape}, origin="m") == expected


@pytest.mark.parametrize(
    ("stored", "shape", "expected"),
    [
        ("token_embd.weight", (9, 8), {"model.embed_tokens.weight": Place("token_embd.weight")}),
        ("output.weight", (9, 8), {"lm_head.weight": Place("output.weight")}),
        ("blk.7.attn_q.bias", (8,), {f"{L}.self_attn.q_proj.bias": Place("blk.7.attn_q.bias")}),
        ("blk.7.attn_sinks.weight", (4,), {f"{L}.self_attn.sinks": Place("blk.7.attn_sinks.weight")}),
        (
            "blk.7.post_attention_norm.weight",
            (8,),
            {f"{L}.post_attention_layernorm.weight": Place("blk.7.post_attention_norm.weight")},
        ),
        (
            "blk.7.ffn_gate_inp_shexp.weight",
            (8,),
            {f"{L}.mlp.shared_expert_gate.weight": Place("blk.7.ffn_gate_inp_shexp.weight", as_row=True)},
        ),
        (
            "blk.7.ffn_down_exps.weight",
            (2, 8, 6),
            {f"{L}.mlp.experts.{e}.down_proj.weight": Place("blk.7.ffn_down_exps.weight", e) for e in (0, 1)},
        ),
        (
            "blk.7.ffn_down_exps.bias",
            (2, 8),
            {f"{L}.mlp.experts.{e}.down_proj.bias": Place("blk.7.ffn_down_exps.bias", e) for e in (0, 1)},
        ),
        ("blk.7.ffn_up.1.weight", (6, 8), {f"{L}.mlp.experts.1.up_proj.weight": Place("blk.7.ffn_up.1.weight")}),
        ("blk.7.attn_q.1.weight", (6, 8), {"blk.7.attn_q.1.weight": Place("blk.7.attn_q.1.weight")}),
        ("blk.7.ssm_a", (6,), {"blk.7.ssm_a": Place("blk.7.ssm_a")}),
        ("mm.0.weight", (6,), {"mm.0.weight": Place("mm.0.weight")}),
    ],
)
def test_gguf(stored: str, shape: tuple[int, ...], expected: dict[str, Place]) -> None:
    assert names.gguf({stored: shape}, origin="m") == expected


def test_two_tensors_of_one_name_are_named() -> None:
    shapes = {"blk.0.ffn_norm.weight": (8,), "blk.0.post_attention_norm.weight": (8,)}
    with pytest.raises(
        CheckpointError, match=r"m\.gguf: tensors 'blk\.0\.ffn_norm\.weight' and 'blk\.0\.post_attention"
    ):
        names.gguf(shapes, origin="m.gguf")


@pytest.mark.parametrize(
    ("place", "stored", "expected"),
    [
        (Place("x"), (6, 8), (6, 8)),
        (Place("x", 1), (4, 6, 8), (6, 8)),
        (Place("x", 1, rows=range(1, 7, 2)), (4, 7, 8), (3, 8)),
        (Place("x", 1, True, range(0, 6, 2)), (4, 8, 6), (3, 8)),
        (Place("x", as_row=True), (8,), (1, 8)),
        (Place("x", 2), (4, 6), (6,)),
    ],
)
def test_the_shape_of_a_part(place: Place, stored: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert place.shape(stored) == expected
