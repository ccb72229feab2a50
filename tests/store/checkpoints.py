"""Tiny random checkpoints in every format that is read. Their tokenizer has all bytes, two merges, three specials."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from strata.config import read_hf_config
from strata.plan.shape import needed

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "Ġ he"]
TOKENS = [*SPECIALS, *_BYTES, "he", "Ġhe"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(**changes: Any) -> dict[str, Any]:
    """The Hugging Face config of the tiny Llama."""
    return CONFIG | changes


def weights(table: Mapping[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights that bfloat16 holds exactly, so that every format of a checkpoint gives the same ones."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for spec in needed(read_hf_config(table, origin="test")):
        noise = torch.randn(spec.shape, generator=generator)
        tensors[spec.name] = (1 + 0.1 * noise if len(spec.shape) == 1 else 0.2 * noise).bfloat16().float()
    return tensors


def write_hf(
    directory: Path,
    table: Mapping[str, Any] | None = None,
    *,
    tensors: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype | None = torch.bfloat16,
    shards: int = 1,
) -> Path:
    """A Hugging Face directory; with more than one shard it has an index. dtype: of all tensors; None leaves theirs."""
    table = CONFIG if table is None else table
    tensors = weights(table) if tensors is None else tensors
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(table))
    names = list(tensors)
    files = ["model.safetensors"] if shards == 1 else [f"model-{n + 1}-of-{shards}.safetensors" for n in range(shards)]
    for index, file in enumerate(files):
        held = {name: tensors[name].to(dtype or tensors[name].dtype).contiguous() for name in names[index::shards]}
        save_file(held, str(directory / file))
    if shards > 1:
        weight_map = {name: files[position % shards] for position, name in enumerate(names)}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(TOKENS)}, merges=_pairs()))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": SPECIALS[1], "eos_token": SPECIALS[2]}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def write_gguf(
    path: Path,
    table: Mapping[str, Any] | None = None,
    *,
    tensors: Mapping[str, torch.Tensor] | None = None,
    architecture: str = "llama",
    kind: str = "F32",
    pre: str = "gpt-2",
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    without: tuple[str, ...] = (),
    tensors_per_part: int = 0,
) -> Path:
    """A GGUF file; matrices are stored as ``kind``. ``edit`` adds more to it; metadata keys in ``without`` are left
    out. With ``tensors_per_part`` it comes in parts, named by the library; their first is returned."""
    table = CONFIG if table is None else table
    tensors = weights(table) if tensors is None else tensors
    writer = gguf.GGUFWriter(None, architecture, split_max_tensors=tensors_per_part)
    writer.add_context_length(table["max_position_embeddings"])
    writer.add_embedding_length(table["hidden_size"])
    writer.add_block_count(table["num_hidden_layers"])
    writer.add_feed_forward_length(table["intermediate_size"])
    writer.add_head_count(table["num_attention_heads"])
    writer.add_head_count_kv(table["num_key_value_heads"])
    writer.add_key_length(table["head_dim"])
    writer.add_layer_norm_rms_eps(table["rms_norm_eps"])
    writer.add_rope_freq_base(table["rope_theta"])
    for key, add in (
        ("num_local_experts", writer.add_expert_count),
        ("num_experts", writer.add_expert_count),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("sliding_window", writer.add_sliding_window),
    ):
        if table.get(key):
            add(table[key])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, data in ggml_tensors(tensors, table, architecture).items():
        stored = gguf.GGMLQuantizationType["F32" if data.ndim == 1 or name.endswith(".bias") else kind]
        writer.add_tensor(name, gguf.quants.quantize(data, stored), raw_dtype=stored)
    edit(writer)
    for key in without:
        del writer.kv_data[0][key]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-*.gguf"))


def ggml_tensors(
    tensors: Mapping[str, torch.Tensor], table: Mapping[str, Any], architecture: str
) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors under the library's names and in its layout: experts stacked, a "llama"'s q and k interleaved."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], table["num_hidden_layers"])
    stacks: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    out = {}
    for name, tensor in tensors.items():
        data = tensor.numpy()
        if expert := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            stacks.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = data
            continue
        if architecture == "llama":
            data = _ggml_rows(name, data, table)
        if name.endswith("shared_expert_gate.weight"):
            data = data[0]  # a vector
        out[names.get_name(f"{name}.weight" if name.endswith(".sinks") else name, (".weight", ".bias"))] = data
    for name, stack in stacks.items():
        out[names.get_name(name, (".weight", ".bias"))] = np.stack([stack[expert] for expert in range(len(stack))])
    assert len(out) > 0
    assert None not in out, "the library knows every name"
    return out


def _pairs() -> list[tuple[str, str]]:
    return [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]


def _ggml_rows(name: str, data: np.ndarray[Any, Any], table: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """q and k as GGUF stores them: row 2i of a head is row i of its first half, row 2i + 1 that of its second."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for part, key in heads.items():
        if part in name:
            pairs = data.reshape(table[key], 2, -1, *data.shape[1:])
            return np.ascontiguousarray(np.stack([pairs[:, 0], pairs[:, 1]], axis=2).reshape(data.shape))
    return data
