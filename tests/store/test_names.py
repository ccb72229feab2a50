"""Foreign names to canonical ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strata import quant
from strata.config import LinearAttentionConfig, ModelConfig, read_hf_config
from strata.errors import CheckpointError
from strata.store.sources import names
from strata.store.sources.names import Place
from tests.store.checkpoints import config

L = "model.layers.7"
HYBRID = ("Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration")


def model(architecture: str) -> ModelConfig:
    """One of that name: a hybrid one has two heads of 8, one key head for two value heads, of 4 and 2."""
    plain = read_hf_config(config(num_attention_heads=2, head_dim=8), origin="m")
    if architecture not in HYBRID:
        return replace(plain, architecture=architecture)
    linear = LinearAttentionConfig(2, 4, 4, 2, 4)
    return replace(plain, architecture=architecture, gated_attention=True, linear_attention=linear)


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
                    f"{L}.mlp.experts.gate_up_proj", expert, rows=(rows,)
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
                f"{L}.mlp.experts.0.{projection}.weight": Place(f"{L}.mlp.experts.gate_up_proj", 0, True, (rows,))
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
        pytest.param(
            HYBRID[0],
            f"{L}.self_attn.q_proj.weight",
            (32, 8),
            {
                f"{L}.self_attn.{part}.weight": Place(f"{L}.self_attn.q_proj.weight", rows=rows)
                for part, rows in (
                    ("q_proj", (range(8), range(16, 24))),
                    ("gate_proj", (range(8, 16), range(24, 32))),
                )
            },
            id="queries and gates, head by head",
        ),
        pytest.param(
            HYBRID[1],
            "model.language_model.layers.7.self_attn.q_proj.bias",
            (32,),
            {
                f"{L}.self_attn.{part}.bias": Place("model.language_model.layers.7.self_attn.q_proj.bias", rows=rows)
                for part, rows in (
                    ("q_proj", (range(8), range(16, 24))),
                    ("gate_proj", (range(8, 16), range(24, 32))),
                )
            },
            id="their biases, in a model that reads images, too",
        ),
        pytest.param(
            HYBRID[0],
            f"{L}.self_attn.q_proj.weight",
            (31, 8),
            {f"{L}.self_attn.q_proj.weight": Place(f"{L}.self_attn.q_proj.weight")},
            id="a size that does not divide: reported as wrong",
        ),
        pytest.param(
            HYBRID[0],
            f"{L}.linear_attn.in_proj_qkvz.weight",
            (32, 8),
            {
                f"{L}.linear_attn.in_proj_{part}.weight": Place(f"{L}.linear_attn.in_proj_qkvz.weight", rows=rows)
                for part, rows in (
                    (
                        "qkv",
                        (range(4), range(16, 20), range(4, 8), range(20, 24), range(8, 12), range(24, 28)),
                    ),
                    ("z", (range(12, 16), range(28, 32))),
                )
            },
            id="queries, keys, values and gates, by key head",
        ),
        pytest.param(
            HYBRID[0],
            f"{L}.linear_attn.in_proj_ba.weight",
            (8, 8),
            {
                f"{L}.linear_attn.in_proj_{part}.weight": Place(f"{L}.linear_attn.in_proj_ba.weight", rows=rows)
                for part, rows in (("b", (range(2), range(4, 6))), ("a", (range(2, 4), range(6, 8))))
            },
            id="b and a, by key head",
        ),
    ],
)
def test_hugging_face(architecture: str, stored: str, shape: tuple[int, ...], expected: dict[str, Place]) -> None:
    assert names.huggingface(model(architecture), {stored: shape}, origin="m") == expected


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
        (Place("x", 1, rows=(range(1, 7, 2),)), (4, 7, 8), (3, 8)),
        (Place("x", 1, True, (range(0, 6, 2),)), (4, 8, 6), (3, 8)),
        (Place("x", rows=(range(2), range(4, 6))), (6, 8), (4, 8)),
        (Place("x", as_row=True), (8,), (1, 8)),
        (Place("x", 2), (4, 6), (6,)),
    ],
)
def test_the_shape_of_a_part(place: Place, stored: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert place.shape(stored) == expected


def test_rows_of_a_bit_format_are_put_together() -> None:
    """Only what is asked for is read."""
    packed = quant.get("mxfp4").pack(torch.randn(8, 32))
    numbers, asked = quant.get("mxfp4").unpack(packed), []

    def read(_: int | None, rows: slice) -> quant.QuantizedTensor:
        asked.append(rows)
        parts = {name: part[rows] for name, part in packed.parts.items()}
        return quant.QuantizedTensor("mxfp4", (len(range(8)[rows]), 32), parts)

    found = Place("x", rows=(range(4, 6), range(2), range(6, 8))).read(read, slice(1, 5))
    assert isinstance(found, quant.QuantizedTensor)
    assert torch.equal(quant.get("mxfp4").unpack(found), numbers[[5, 0, 1, 6]])
    assert asked == [slice(5, 6, 1), slice(0, 2, 1), slice(6, 7, 1)]
