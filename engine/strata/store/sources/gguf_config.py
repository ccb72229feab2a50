"""A Hugging Face ``config.json`` from GGUF metadata."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.sources.gguf_parts import GGUFParts

# GGUF name: Hugging Face class and model_type. A "llama" with experts is a Mixtral.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss"),
}

# Tokens that end a turn beside the one that the metadata names, as the families' generation_config.json lists them.
_QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")
_TURN_ENDS = {
    "llama": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),  # Llama 3
    **dict.fromkeys(("qwen2", "qwen2moe", "qwen3", "qwen3moe"), _QWEN_ENDS),
    "gpt-oss": ("<|return|>", "<|call|>", "<|endoftext|>"),
}

_DENSE = ("llama", "qwen2", "qwen3")  # unless they have experts

# Llama 3's rule for long contexts is in a GGUF only by its result, one factor a frequency. All its models share these.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def hf_config(file: GGUFParts) -> dict[str, Any]:
    """The keys that ``read_hf_config`` reads.

    Raises CheckpointError naming a key that is missing or of the wrong type, UnsupportedModelError for a RoPE that is
    not known, or experts where the architecture has none.
    """
    tensors, path = file.tensors, file.path
    architecture = file.metadata["general.architecture"]
    keys = _Keys(file, architecture)
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{path}: tensor 'token_embd.weight' is missing")
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    head_dim = keys.whole("attention.key_length", hidden // heads)
    if keys.whole("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: RoPE over a part of each head is not supported")
    name, model_type = ARCHITECTURES[architecture]
    theta = keys.number("rope.freq_base", 10_000.0)
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.whole("context_length"),
        "rope_theta": theta,
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "bfloat16",
    }
    bias = "blk.0.attn_q.bias" in tensors
    if architecture == "llama":
        config |= {"attention_bias": bias, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    elif architecture in ("qwen2", "qwen2moe"):
        config |= {"qkv_bias": bias}
    if architecture not in _DENSE or keys.get("expert_count"):
        config |= _experts(keys)
    scaling = _rope_scaling(keys, theta, head_dim)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config | _special_ids(file)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The metadata of an architecture, each checked for its type. Raises CheckpointError naming one that is missing."""

    file: GGUFParts
    architecture: str

    def get(self, key: str) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        return int(self._checked(key, int, default))

    def number(self, key: str, default: float | None = None) -> float:
        return _shortest(self._checked(key, float, default))

    def _checked(self, key: str, kind: type[float], default: float | None) -> Any:
        value = default if self.get(key) is None else self.get(key)
        if type(value) is not kind or not 0 < value < math.inf:
            raise CheckpointError(
                f"{self.file.path}: the metadata {f'{self.architecture}.{key}'!r} is {value!r}; one positive "
                f"{kind.__name__} is needed"
            )
        return value


def _experts(keys: _Keys) -> dict[str, Any]:
    """What the configuration of an architecture with experts has beside a Llama's."""
    if keys.architecture not in _EXPERTS:
        raise UnsupportedModelError(
            f"{keys.file.path}: a {keys.architecture!r} with {keys.get('expert_count')!r} experts is not supported"
        )
    return _EXPERTS[keys.architecture](keys) | {"num_experts_per_tok": keys.whole("expert_used_count")}


def _mixtral(keys: _Keys) -> dict[str, Any]:
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": keys.whole("expert_count"),
        "sliding_window": None,
    }


def _qwen2_moe(keys: _Keys) -> dict[str, Any]:
    return {
        "num_experts": keys.whole("expert_count"),
        "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,  # of all its models; the metadata does not say
    }


def _qwen3_moe(keys: _Keys) -> dict[str, Any]:
    return {
        "num_experts": keys.whole("expert_count"),
        "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        "norm_topk_prob": True,  # as before
    }


def _gpt_oss(keys: _Keys) -> dict[str, Any]:
    return {
        "num_local_experts": keys.whole("expert_count"),
        "intermediate_size": keys.whole("expert_feed_forward_length"),
        "sliding_window": keys.whole("attention.sliding_window"),
        "attention_bias": True,
    }


_EXPERTS: dict[str, Callable[[_Keys], dict[str, Any]]] = {
    "llama": _mixtral,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "gpt-oss": _gpt_oss,
}


def _special_ids(file: GGUFParts) -> dict[str, Any]:
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
    ends = [ids[kind] for kind in ("eos", "eot", "eom") if kind in ids]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        family = file.metadata["general.architecture"]
        ends += [tokens.index(token) for token in _TURN_ENDS[family] if token in tokens]
    table["eos_token_id"] = list(dict.fromkeys(ends))
    return table


def _rope_scaling(keys: _Keys, theta: float, head_dim: int) -> dict[str, Any] | None:
    """Hugging Face's "rope_scaling"; None where nothing is scaled."""
    file = keys.file
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, theta, head_dim)
    older = keys.get("rope.scale_linear")
    kind = keys.get("rope.scaling.type") or ("none" if older is None else "linear")
    factor = next((value for value in (keys.get("rope.scaling.factor"), older) if value is not None), 1.0)
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"{file.path}: RoPE scaling {kind!r} is not supported; supported: none, linear, yarn, and Llama 3's"
        )
    if type(factor) is not float or not 0 <= factor < math.inf:
        raise CheckpointError(f"{file.path}: the RoPE scaling factor is {factor!r}; a positive number is needed")
    if kind == "none" or factor in (0.0, 1.0):  # writers put 0 or 1 where nothing is scaled
        return None
    scaling = {"rope_type": kind, "factor": _shortest(factor)}
    if kind == "linear":
        return scaling
    if keys.get("rope.scaling.attn_factor") not in (None, 1.0):
        raise UnsupportedModelError(
            f"{file.path}: YaRN with an attention factor of its own ({keys.get('rope.scaling.attn_factor')!r}) is not "
            "supported"
        )
    scaling["original_max_position_embeddings"] = keys.whole("rope.scaling.original_context_length")
    for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        scaling[key] = keys.number(f"rope.scaling.yarn_{key}", default)
    if keys.architecture == "gpt-oss":
        scaling["truncate"] = False  # as it was trained; the metadata does not say
    return scaling


def _llama3_scaling(file: GGUFParts, theta: float, head_dim: int) -> dict[str, Any]:
    """The scaling whose factors are the file's; raises UnsupportedModelError when they follow another rule."""
    info = file.tensors["rope_freqs.weight"]
    if info.type != "F32" or info.shape != (head_dim // 2,):
        raise CheckpointError(f"{file.path}: tensor 'rope_freqs.weight' is {info.type} {list(info.shape)}")
    found = struct.unpack(f"<{head_dim // 2}f", file.read("rope_freqs.weight")[0])
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
