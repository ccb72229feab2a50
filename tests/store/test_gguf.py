"""GGUF checkpoints under Hugging Face names: tensors and config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from strata import quant
from strata.config import read_hf_config
from strata.config.model_name import BuiltinName
from strata.errors import CheckpointError, UnsupportedModelError
from strata.plan.shape import check
from strata.quant import QuantizedTensor
from strata.store.sources.builtin import builtin_path
from strata.store.sources.gguf import TYPES, GGUFSource
from tests.store.checkpoints import TOKENS, config, weights, write_gguf

# One ulp of the type, relative to a weight; what ggml's own rounding to it may be off by.
EXACT = {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", sorted(EXACT))
def test_reads_the_weights_that_were_written(tmp_path: Path, kind: str) -> None:
    table = config(tie_word_embeddings=False, attention_bias=True)
    written = weights(table)
    source = GGUFSource(write_gguf(tmp_path / "m.gguf", table, tensors=written, kind=kind))
    assert set(source.tensors) == set(written)
    for name, tensor in written.items():
        assert source.tensors[name].shape == tuple(tensor.shape)
        found = source.read(name)
        assert isinstance(found, torch.Tensor)
        assert found.dtype in (torch.float32, torch.float16, torch.bfloat16)
        if kind == "F16":  # subnormal in float16
            torch.testing.assert_close(found.float(), tensor, rtol=0, atol=3e-8)
        else:
            assert torch.equal(found.float(), tensor)
        for rows in (slice(3, 7), slice(10, 27), slice(16, 32)):  # of one head, of several, of whole ones
            assert torch.equal(source.read(name, rows), found[rows])


@pytest.mark.parametrize("kind", sorted(set(TYPES) - EXACT))
def test_dequantises_as_the_library_does(tmp_path: Path, kind: str) -> None:
    stored = gguf.GGMLQuantizationType[kind]
    _, block_bytes = gguf.GGML_QUANT_SIZES[stored]
    rows, blocks = 64, 2
    raw = np.random.default_rng(0).integers(0, 64, (rows, blocks * block_bytes), dtype=np.uint8)  # finite as fp16

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.extra.weight", raw, raw_dtype=stored)

    source = GGUFSource(write_gguf(tmp_path / "m.gguf", edit=edit))
    expected = torch.from_numpy(gguf.quants.dequantize(raw, stored))
    assert expected.isfinite().all()
    assert expected.unique().numel() > 16
    assert source.tensors["blk.0.extra.weight"].dtype == kind
    assert torch.equal(numbers(source.read("blk.0.extra.weight")), expected)
    assert torch.equal(numbers(source.read("blk.0.extra.weight", slice(8, 40))), expected[8:40])


def test_a_vector_is_read_by_its_blocks(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    raw = gguf.quants.quantize(np.random.default_rng(0).normal(size=96).astype(np.float32), kind)

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.extra.bias", raw, raw_dtype=kind)

    source = GGUFSource(write_gguf(tmp_path / "m.gguf", edit=edit))
    expected = torch.from_numpy(gguf.quants.dequantize(raw, kind))
    assert torch.equal(numbers(source.read("blk.0.extra.bias")), expected)
    assert torch.equal(numbers(source.read("blk.0.extra.bias", slice(3, 40))), expected[3:40])


def numbers(tensor: torch.Tensor | QuantizedTensor) -> torch.Tensor:
    return quant.get(tensor.format).unpack(tensor) if isinstance(tensor, QuantizedTensor) else tensor


def test_q_and_k_rows_are_back_in_halves(tmp_path: Path) -> None:
    # Rows numbered by their place in Hugging Face's order; the file interleaves the halves of each head.
    written = weights(config())
    name = "model.layers.0.self_attn.k_proj.weight"
    written[name] = torch.arange(32.0)[:, None].expand(32, 64).contiguous()
    path = write_gguf(tmp_path / "m.gguf", tensors=written)
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_k.weight")
    assert stored.data[:6, 0].tolist() == [0, 8, 1, 9, 2, 10]
    found = GGUFSource(path).read(name)
    assert isinstance(found, torch.Tensor)
    assert found[:, 0].tolist() == list(range(32))


def test_config_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    table = config(rope_theta=500000.0, tie_word_embeddings=False, num_key_value_heads=1)
    source = GGUFSource(write_gguf(tmp_path / "m.gguf", table))
    assert read_hf_config(source.config, origin="gguf") == read_hf_config(table, origin="hf")


def test_every_token_that_may_end_a_turn_is_an_end(tmp_path: Path) -> None:
    source = GGUFSource(write_gguf(tmp_path / "m.gguf", edit=lambda writer: writer.add_eot_token_id(0)))
    assert source.config["eos_token_id"] == [2, 0]


def test_ends_of_turns_that_only_the_family_knows_are_ends(tmp_path: Path) -> None:
    calls = ["<|call|>", "<|return|>", *TOKENS[2:]]

    def edit(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["tokenizer.ggml.tokens"]
        writer.add_token_list(calls)
        writer.add_expert_feed_forward_length(96)

    table = config(num_local_experts=2, num_experts_per_tok=1, sliding_window=16)
    tensors = {"model.embed_tokens.weight": torch.zeros(len(TOKENS), 64)}
    path = write_gguf(tmp_path / "m.gguf", table, architecture="gpt-oss", tensors=tensors, edit=edit)
    assert GGUFSource(path).config["eos_token_id"] == [2, 1, 0]  # the file's own, then those of the family


def test_linear_rope_scaling(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    source = GGUFSource(write_gguf(tmp_path / "m.gguf", edit=edit))
    assert source.config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama3_factors(theta: float, head_dim: int) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter makes them: by wave length."""
    factors = []
    for dim in range(0, head_dim, 2):
        wave = 2 * np.pi * theta ** (dim / head_dim)
        if wave < 8192 / 4.0:
            factors.append(1.0)
        elif wave > 8192 / 1.0:
            factors.append(32.0)
        else:
            smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / 32.0 + smooth))
    return np.array(factors, dtype=np.float32)


def test_llama3_rope_scaling_is_told_from_its_factors(tmp_path: Path) -> None:
    table = config(rope_theta=500000.0, head_dim=128)
    factors = llama3_factors(500000.0, 128)
    assert {1.0, 32.0} < set(factors.tolist())  # both ends, and something between
    path = write_gguf(tmp_path / "m.gguf", table, edit=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    source = GGUFSource(path)
    assert source.config["rope_scaling"] == LLAMA3
    assert "rope_freqs.weight" not in source.tensors


def test_other_rope_factors_are_refused(tmp_path: Path) -> None:
    table = config(rope_theta=500000.0, head_dim=128)
    factors = llama3_factors(500000.0, 128)
    factors[40] *= 1.01
    path = write_gguf(tmp_path / "m.gguf", table, edit=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight"):
        GGUFSource(path)


def yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def test_yarn_rope_scaling(tmp_path: Path) -> None:
    assert GGUFSource(write_gguf(tmp_path / "m.gguf", edit=yarn)).config["rope_scaling"] == YARN

    def betas(writer: gguf.GGUFWriter) -> None:
        yarn(writer)
        writer.add_rope_scaling_yarn_beta_fast(24.0)
        writer.add_rope_scaling_yarn_beta_slow(2.0)

    found = GGUFSource(write_gguf(tmp_path / "b.gguf", edit=betas)).config["rope_scaling"]
    assert found == YARN | {"beta_fast": 24.0, "beta_slow": 2.0}


def test_yarn_without_its_context_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", edit=yarn, without=("llama.rope.scaling.original_context_length",))
    with pytest.raises(CheckpointError, match=r"'llama\.rope\.scaling\.original_context_length' is None"):
        GGUFSource(path)


def longrope(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)


def louder_yarn(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    writer.add_rope_scaling_attn_factors(1.5)


def iq4(writer: gguf.GGUFWriter) -> None:
    raw = np.zeros((32, 18), np.uint8)
    writer.add_tensor("blk.0.extra.weight", raw, raw_dtype=gguf.GGMLQuantizationType.IQ4_NL)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (longrope, "RoPE scaling 'longrope' is not supported; supported: none, linear, yarn"),
        (louder_yarn, r"YaRN with an attention factor of its own \(1\.5\)"),
        (lambda writer: writer.add_rope_dimension_count(8), "RoPE over a part of each head"),
        (iq4, "'blk.0.extra.weight' has the type IQ4_NL; supported: F32, F16, BF16, Q8_0"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, edit: Callable[[gguf.GGUFWriter], None], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        GGUFSource(write_gguf(tmp_path / "m.gguf", edit=edit))


def test_unsupported_architecture_lists_the_supported(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedModelError, match=r"m\.gguf: GGUF architecture 'gpt2' is not supported; supported: llama, qwen2, "
    ):
        GGUFSource(tmp_path / "m.gguf")


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "context_length", "attention.head_count"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", without=(f"llama.{key}",))
    with pytest.raises(CheckpointError, match=f"'llama.{key}' is None; one positive int is needed"):
        GGUFSource(path)


def test_the_built_in_model_is_whole_and_keeps_its_grid() -> None:
    path = builtin_path(BuiltinName("smollm2-135m"))
    source = GGUFSource(path)
    model = read_hf_config(source.config, origin=str(path))
    assert (model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads) == (30, 576, 9, 3)
    assert (model.rms_norm_eps, model.rope.theta, model.tie_word_embeddings) == (1e-5, 100_000.0, True)
    assert model.eos_token_ids == (2,)
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    assert len(check(model, shapes, origin=str(path))) == 272
    for name in ("self_attn.k_proj", "mlp.down_proj"):
        weight = source.read(f"model.layers.7.{name}.weight")
        assert isinstance(weight, torch.Tensor)
        int4 = quant.get("int4")
        assert (int4.unpack(int4.pack(weight)) - weight).norm() < 0.005 * weight.norm()  # Q4_1: 16 levels a group
