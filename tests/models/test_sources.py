"""From a GGUF or a quantised directory, through a store, to logits: those of `transformers` with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from strata import quant
from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.quant import QuantizedTensor
from strata.quant.nibbles import unpack_nibbles
from strata.runner.runner import Runner
from strata.store.convert import convert
from strata.store.reader import Store
from tests.models import tiny
from tests.store import packing
from tests.store.checkpoints import write_gguf, write_hf

TOKEN_IDS = [(7 * i + i * i) % 160 for i in range(100)]
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64}

# By GGUF architecture: the class of `transformers`, and what its config has beside tiny.SETTINGS.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", {"attention_bias": True}),
    "mistral": ("llama", "MistralForCausalLM", {"sliding_window": None}),
    "mixtral": ("llama", "MixtralForCausalLM", {"num_local_experts": 8, "sliding_window": None}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", {"rope_parameters": YARN}),
    "qwen2 moe": ("qwen2moe", "Qwen2MoeForCausalLM", {**MOE, "shared_expert_intermediate_size": 96}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3 moe": ("qwen3moe", "Qwen3MoeForCausalLM", {**MOE, "norm_topk_prob": True}),
    "gpt-oss": (
        "gpt-oss",
        "GptOssForCausalLM",
        {
            "num_local_experts": 8,
            "sliding_window": 24,
            "intermediate_size": 64,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
}


def run(store: Path) -> torch.Tensor:
    config = EngineConfig(
        model=str(store), device=DeviceConfig(device="cpu", num_threads=1), cache=CacheConfig(num_kv_tokens=512)
    )
    runner = Runner.load(Store.open(store), config, compute_dtype=torch.float32)
    return tiny.run_chunks(runner, TOKEN_IDS, 40, list(range(16)))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_gguf(tmp_path: Path, family: str) -> None:
    architecture, name, settings = FAMILIES[family]
    model = tiny.hf_model(name, **settings)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.bfloat16())
    table = {**model.config.to_dict(), "rope_theta": float(model.config.rope_parameters["rope_theta"])}

    def edit(writer: gguf.GGUFWriter) -> None:
        if "rope_parameters" in settings:
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(YARN["factor"])
            writer.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
        if family == "gpt-oss":
            writer.add_expert_feed_forward_length(64)

    tensors = tiny.checkpoint(model)
    path = write_gguf(tmp_path / "m.gguf", table, tensors=tensors, architecture=architecture, kind="BF16", edit=edit)
    found = run(convert(str(path), tmp_path / "store", "bf16"))
    assert tiny.relative(found, tiny.reference_logits(model, TOKEN_IDS)) < 1e-4


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_logits_of_gpt_oss_as_it_is_published(tmp_path: Path, dtype: str) -> None:
    model = tiny.hf_model("GptOssForCausalLM", **FAMILIES["gpt-oss"][2])
    form = quant.get("mxfp4")
    stored: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if ".experts." in name and name.endswith("_proj"):  # [experts, cols, rows]
            packed = [form.pack(matrix.T.contiguous()) for matrix in parameter.data]
            parameter.data.copy_(torch.stack([form.unpack(matrix) for matrix in packed]).transpose(1, 2))
            codes = torch.stack([unpack_nibbles(matrix.parts["codes"]) for matrix in packed])
            scales = torch.stack([matrix.parts["scales"] for matrix in packed])
            blocks = packing.mxfp4(codes.long().numpy(), scales.numpy())
            stored |= {f"{name}_{part}": tensor for part, tensor in blocks.items()}
        else:
            parameter.data.copy_(parameter.data.bfloat16())
            stored[name] = parameter.data.bfloat16()
    table = {
        **model.config.to_dict(),
        "architectures": ["GptOssForCausalLM"],
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    }
    source = write_hf(tmp_path / "source", table, tensors=stored, dtype=None, shards=2)
    store = convert(str(source), tmp_path / "store", dtype)
    kinds = {
        weight.format
        for name, weight in Store.open(store).load()
        if isinstance(weight, QuantizedTensor) and ".experts." in name
    }
    assert kinds == {"mxfp4"}
    if dtype == "bf16":  # the other one rounds attention
        assert tiny.relative(run(store), tiny.reference_logits(model, TOKEN_IDS)) < 1e-4
