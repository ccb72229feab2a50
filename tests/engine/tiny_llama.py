"""A tiny Llama checkpoint with random weights, in the Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from strata.config import read_hf_config
from strata.plan.shape import needed

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}


# Changes of it that make a Qwen3-MoE.
EXPERTS: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}

# Changes of it that make a Qwen3-Next.
QWEN3_NEXT: dict[str, Any] = {
    **EXPERTS,
    "architectures": ["Qwen3NextForCausalLM"],
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 32,
    "eos_token_id": None,
}

# Changes of it that make a Qwen3.5-MoE.
QWEN3_5: dict[str, Any] = {**QWEN3_NEXT, "architectures": ["Qwen3_5MoeForCausalLM"]}


def write_checkpoint(directory: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the checkpoint to ``directory``, which is made, and return it. ``changes``: keys of its config.

    Weights are ten times as wide as a fresh model's, so that logits lie far apart: the greedy token does not hang on
    the order of a sum, and outputs can be compared token by token.
    """
    table = CONFIG | changes
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for spec in needed(read_hf_config(table, origin="tiny")):
        noise = torch.randn(spec.shape, generator=generator)
        tensors[spec.name] = (1 + 0.1 * noise if len(spec.shape) == 1 else 0.2 * noise).bfloat16()
    save_file(tensors, str(directory / "model.safetensors"))
    (directory / "config.json").write_text(json.dumps(table))
    vocabulary = {"<unk>": 0, "</s>": 1} | {f"w{n}": n for n in range(2, CONFIG["vocab_size"])}
    Tokenizer(WordLevel(vocabulary, unk_token="<unk>")).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return directory
