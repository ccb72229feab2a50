"""A Hugging Face ``config.json`` from GGUF metadata."""

from __future__ import annotations

import math
import struct
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.sources.gguf_file import GGUFFile

ARCHITECTURES = {"llama": ("LlamaForCausalLM", "llama")}  # GGUF name: Hugging Face class, model_type

# Llama 3's rule for long contexts is in a GGUF only by its result, one factor a frequency. All its models share these.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def hf_config(file: GGUFFile) -> dict[str, Any]:
    """The keys that ``read_hf_config`` reads.

    Raises CheckpointError naming a key that is missing or of the wrong type, UnsupportedModelError for a mixture of
    experts or an unknown RoPE scaling.
    """
    metadata, tensors, path = file.metadata, file.tensors, file.path
    architecture = metadata["general.architecture"]

    def number(key: str, kind: type[float], default: float | None = None) -> Any:
        value = metadata.get(f"{architecture}.{key}", default)
        if value is None or type(value) is not kind or not 0 < value < math.inf:
            raise CheckpointError(
                f"{path}: the metadata {f'{architecture}.{key}'!r} is {value!r}; one positive {kind.__name__} is needed"
            )
        return value

    experts = metadata.get(f"{architecture}.expert_count")
    if experts:
        raise UnsupportedModelError(f"{path}: a {architecture!r} with {experts} experts is not supported")
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{path}: tensor 'token_embd.weight' is missing")
    hidden, heads = number("embedding_length", int), number("attention.head_count", int)
    head_dim = number("attention.key_length", int, hidden // heads)
    if number("rope.dimension_count", int, head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: RoPE over a part of each head is not supported")
    name, model_type = ARCHITECTURES[architecture]
    theta = _shortest(number("rope.freq_base", float, 10_000.0))
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": number("feed_forward_length", int),
        "num_hidden_layers": number("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(number("attention.layer_norm_rms_epsilon", float)),
        "max_position_embeddings": number("context_length", int),
        "rope_theta": theta,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "torch_dtype": "bfloat16",
    }
    scaling = _rope_scaling(file, f"{architecture}.rope", theta, head_dim)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config | _special_ids(file)


def _special_ids(file: GGUFFile) -> dict[str, Any]:
    ids: dict[str, int] = {}
    for kind in ("bos", "padding", "eos", "eot", "eom"):
        key = f"tokenizer.ggml.{kind}_token_id"
        value = file.metadata.get(key)
        if value is not None and type(value) is not int:
            raise CheckpointError(f"{file.path}: the metadata {key!r} is {value!r}; one integer is needed")
        if value is not None:
            ids[kind] = value
    table: dict[str, Any] = {
        f"{key}_token_id": ids[kind] for key, kind in (("bos", "bos"), ("pad", "padding")) if kind in ids
    }
    # A chat model may end its turn with another token than its text: each of them stops a sequence.
    table["eos_token_id"] = list(dict.fromkeys(ids[kind] for kind in ("eos", "eot", "eom") if kind in ids))
    return table


def _rope_scaling(file: GGUFFile, prefix: str, theta: float, head_dim: int) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, theta, head_dim)
    metadata = file.metadata
    kind = metadata.get(f"{prefix}.scaling.type", "linear" if f"{prefix}.scale_linear" in metadata else "none")
    factor = metadata.get(f"{prefix}.scaling.factor", metadata.get(f"{prefix}.scale_linear", 1.0))
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{file.path}: RoPE scaling {kind!r} is not supported; supported: none, linear, and Llama 3's"
        )
    if type(factor) is not float or not 0 <= factor < math.inf:
        raise CheckpointError(f"{file.path}: the RoPE scaling factor is {factor!r}; a positive number is needed")
    # Writers put 0 or 1 where nothing is scaled.
    return None if kind == "none" or factor in (0.0, 1.0) else {"rope_type": "linear", "factor": _shortest(factor)}


def _llama3_scaling(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    """The scaling whose factors are the file's; raises UnsupportedModelError when they follow another rule."""
    info = file.tensors["rope_freqs.weight"]
    if info.type != "F32" or info.shape != (head_dim // 2,):
        raise CheckpointError(f"{file.path}: tensor 'rope_freqs.weight' is {info.type} {list(info.shape)}")
    found = struct.unpack(f"<{head_dim // 2}f", file.read(info))
    stretch = max(1.0, *found)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    for pair, factor in enumerate(found):
        turns = _LLAMA3["original_max_position_embeddings"] * theta ** (-2 * pair / head_dim) / (2 * math.pi)
        blend = min(max((turns - low) / (high - low), 0.0), 1.0)
        if not math.isclose(factor, 1 / (blend + (1 - blend) / stretch), rel_tol=1e-3):
            raise UnsupportedModelError(
                f"{file.path}: the RoPE factors in 'rope_freqs.weight' are not those of Llama 3"
            )
    return {"rope_type": "llama3", "factor": _shortest(stretch), **_LLAMA3}


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, where the file's float32 widens to 9.99999974e-06."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value
