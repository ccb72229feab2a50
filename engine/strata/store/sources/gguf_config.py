"""A Hugging Face ``config.json`` from GGUF metadata."""

from __future__ import annotations

import struct
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.sources.gguf_file import GGUFFile

ARCHITECTURES = {"llama": ("LlamaForCausalLM", "llama")}  # GGUF name: Hugging Face class, model_type


def hf_config(file: GGUFFile) -> dict[str, Any]:
    """The keys that ``ModelConfig.from_hf`` reads.

    Raises CheckpointError naming a missing key, UnsupportedModelError for a mixture of experts or an unknown RoPE
    scaling.
    """
    metadata, tensors, path = file.metadata, file.tensors, file.path
    architecture = metadata["general.architecture"]

    def need(key: str) -> Any:
        name = f"{architecture}.{key}"
        if name not in metadata:
            raise CheckpointError(f"{path}: the metadata key {name!r} is missing")
        return metadata[name]

    def maybe(key: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    if maybe("expert_count", 0):
        raise UnsupportedModelError(
            f"{path}: a {architecture!r} with {maybe('expert_count')} experts is not supported; dense models are"
        )
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{path}: tensor 'token_embd.weight' is missing")
    heads, hidden = need("attention.head_count"), need("embedding_length")
    if isinstance(heads, list):
        raise UnsupportedModelError(f"{path}: layers with different numbers of heads are not supported")
    name, model_type = ARCHITECTURES[architecture]
    head_dim = maybe("attention.key_length", hidden // heads)
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": maybe("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(need("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": need("context_length"),
        "rope_theta": _shortest(maybe("rope.freq_base", 10_000.0)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "torch_dtype": "bfloat16",
    }
    if maybe("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: RoPE over a part of each head is not supported")
    scaling = _rope_scaling(file, maybe, config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    for key, source in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        if f"tokenizer.ggml.{source}_token_id" in metadata:
            config[key] = metadata[f"tokenizer.ggml.{source}_token_id"]
    # A chat model may end its turn with another token than its text: both stop a sequence.
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    config["eos_token_id"] = list(dict.fromkeys(end for end in ends if end is not None))
    return config


def _rope_scaling(file: GGUFFile, maybe: Any, config: dict[str, Any]) -> dict[str, Any] | None:
    kind = maybe("rope.scaling.type", "none")
    factor = maybe("rope.scaling.factor", maybe("rope.scale_linear"))
    if "rope_freqs.weight" in file.tensors:
        raise UnsupportedModelError(f"{file.path}: RoPE frequency factors ('rope_freqs.weight') are not supported yet")
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": _shortest(factor)}
    raise UnsupportedModelError(f"{file.path}: RoPE scaling {kind!r} is not supported; supported: none, linear")


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, where the file's float32 widens to 9.99999974e-06."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value
