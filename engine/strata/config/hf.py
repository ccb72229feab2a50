"""A Hugging Face ``config.json``: what its keys mean for each architecture, and what it means when one is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from strata.config.model import ExpertsConfig, ModelConfig, RopeConfig
from strata.errors import CheckpointError


def read_hf_config(table: Mapping[str, Any], *, origin: str) -> ModelConfig:
    """Read a Hugging Face ``config.json``; ``origin`` names the file in errors.

    What a key that is missing means depends on the architecture, as in Hugging Face's configuration classes. An
    architecture that is not known is read as a Llama; ``strata.plan.shape`` refuses it. Raises CheckpointError
    naming the key that is missing or of the wrong type.
    """
    keys = _Keys(table, origin)
    architectures = table.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(f"{origin}: 'architectures' is {architectures!r}; a list with the class name is needed")
    family = _FAMILIES.get(architectures[0], _Family())
    num_layers = keys.whole("num_hidden_layers")
    num_heads = keys.whole("num_attention_heads")
    hidden_size = keys.whole("hidden_size")
    num_kv_heads = keys.whole("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(f"{origin}: {num_heads} attention heads do not divide into {num_kv_heads} KV heads")
    # Newer configs keep all of RoPE in one table, "rope_parameters"; older ones have theta beside "rope_scaling".
    rope = table.get("rope_parameters") or table.get("rope_scaling") or None
    if rope is not None and not isinstance(rope, dict):
        raise CheckpointError(f"{origin}: RoPE's scaling is {rope!r}; a table is needed")
    theta = (rope or {}).get("rope_theta", table.get("rope_theta", 10_000.0))
    intermediate_size = keys.whole("intermediate_size")
    experts = family.experts(keys, intermediate_size) if family.experts else None
    attention_bias = keys.flag("attention_bias", family.attention_bias)
    return ModelConfig(
        architecture=architectures[0],
        vocab_size=keys.whole("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=keys.whole("head_dim", family.head_dim or hidden_size // num_heads),
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        max_position_embeddings=keys.whole("max_position_embeddings"),
        rope=RopeConfig(theta=keys.checked("rope_theta", theta), scaling=rope),
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        qkv_bias=keys.flag("qkv_bias", True) if family.qkv_bias else attention_bias,
        o_bias=False if family.qkv_bias else attention_bias,
        mlp_bias=keys.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        attention_sinks=family.attention_sinks,
        windows=family.windows(keys, num_layers),
        experts=experts,
        expert_layers=_expert_layers(keys, num_layers) if experts else (False,) * num_layers,
        swiglu_limit=keys.number("swiglu_limit", 7.0) if family.attention_sinks else None,
        eos_token_ids=token_ids(table, "eos_token_id", origin=origin),
    )


def token_ids(table: Mapping[str, Any], key: str, *, origin: str) -> tuple[int, ...]:
    """A token id, or a list of them, or none; raises CheckpointError naming the key of ``origin`` for anything else."""
    value = table.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and item >= 0 for item in values):
        raise CheckpointError(f"{origin}: {key!r} is {value!r}; a token id or a list of them is needed")
    return tuple(values)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of a ``config.json``, each checked for its type; null stands for a key that is missing."""

    table: Mapping[str, Any]
    origin: str

    def whole(self, key: str, default: int | None = None) -> int:
        value = default if self.table.get(key) is None else self.table[key]
        if type(value) is not int or value <= 0:
            raise CheckpointError(f"{self.origin}: {key!r} is {value!r}; a positive integer is needed")
        return value

    def number(self, key: str, default: float) -> float:
        return self.checked(key, default if self.table.get(key) is None else self.table[key])

    def checked(self, key: str, value: Any) -> float:
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise CheckpointError(f"{self.origin}: {key!r} is {value!r}; a positive number is needed")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.table.get(key)
        if value is not None and type(value) is not bool:
            raise CheckpointError(f"{self.origin}: {key!r} is {value!r}; true or false is needed")
        return default if value is None else value


Windows: TypeAlias = "Callable[[_Keys, int], tuple[int | None, ...]]"


def _no_windows(_: _Keys, num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def _windows_everywhere(default: int | None) -> Windows:
    """Mistral and Mixtral: one window for all layers; null switches it off, a missing key takes the default."""

    def windows(keys: _Keys, num_layers: int) -> tuple[int | None, ...]:
        if keys.table.get("sliding_window", default) is None:
            return (None,) * num_layers
        return (keys.whole("sliding_window", default),) * num_layers

    return windows


def _windows_if_used(keys: _Keys, num_layers: int) -> tuple[int | None, ...]:
    """Qwen: ``use_sliding_window`` turns it on, for layers from ``max_window_layers`` on or by ``layer_types``."""
    if not keys.flag("use_sliding_window", False):
        return (None,) * num_layers
    window = keys.whole("sliding_window", 4096)
    if keys.table.get("layer_types") is not None:
        return _by_layer_types(keys, num_layers, window)
    first = keys.table.get("max_window_layers", 28)
    if type(first) is not int or first < 0:
        raise CheckpointError(f"{keys.origin}: 'max_window_layers' is {first!r}; an integer of 0 or more is needed")
    return tuple(None if layer < first else window for layer in range(num_layers))


def _alternating_windows(keys: _Keys, num_layers: int) -> tuple[int | None, ...]:
    """gpt-oss: every second layer, beginning with the first, unless ``layer_types`` says otherwise."""
    window = keys.whole("sliding_window", 128)
    if keys.table.get("layer_types") is not None:
        return _by_layer_types(keys, num_layers, window)
    return tuple(window if layer % 2 == 0 else None for layer in range(num_layers))


def _by_layer_types(keys: _Keys, num_layers: int, window: int) -> tuple[int | None, ...]:
    kinds = keys.table["layer_types"]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise CheckpointError(
            f"{keys.origin}: 'layer_types' must be a list of {num_layers} entries, each one of {', '.join(known)}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _expert_layers(keys: _Keys, num_layers: int) -> tuple[bool, ...]:
    """Qwen: every ``decoder_sparse_step``-th layer, but not those of ``mlp_only_layers``."""
    step = keys.whole("decoder_sparse_step", 1)
    dense = keys.table.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise CheckpointError(f"{keys.origin}: 'mlp_only_layers' is {dense!r}; a list of layer numbers is needed")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))


def _checked_top_k(keys: _Keys, experts: ExpertsConfig) -> ExpertsConfig:
    if experts.num_experts_per_tok > experts.num_experts:
        raise CheckpointError(
            f"{keys.origin}: a token takes {experts.num_experts_per_tok} experts, but there are {experts.num_experts}"
        )
    return experts


def _mixtral_experts(keys: _Keys, intermediate_size: int) -> ExpertsConfig:
    return _checked_top_k(
        keys,
        ExpertsConfig(
            num_experts=keys.whole("num_local_experts", 8),
            num_experts_per_tok=keys.whole("num_experts_per_tok", 2),
            intermediate_size=intermediate_size,
            shared_intermediate_size=0,
            norm_topk_prob=True,
            router_bias=False,
            bias=False,
        ),
    )


def _qwen_experts(has_shared: bool) -> Callable[[_Keys, int], ExpertsConfig]:
    def experts(keys: _Keys, _: int) -> ExpertsConfig:
        return _checked_top_k(
            keys,
            ExpertsConfig(
                num_experts=keys.whole("num_experts"),
                num_experts_per_tok=keys.whole("num_experts_per_tok"),
                intermediate_size=keys.whole("moe_intermediate_size"),
                shared_intermediate_size=keys.whole("shared_expert_intermediate_size") if has_shared else 0,
                norm_topk_prob=keys.flag("norm_topk_prob", False),
                router_bias=False,
                bias=False,
            ),
        )

    return experts


def _gpt_oss_experts(keys: _Keys, intermediate_size: int) -> ExpertsConfig:
    return _checked_top_k(
        keys,
        ExpertsConfig(
            num_experts=keys.whole("num_local_experts"),
            num_experts_per_tok=keys.whole("num_experts_per_tok", keys.table.get("experts_per_token")),
            intermediate_size=intermediate_size,
            shared_intermediate_size=0,
            norm_topk_prob=True,  # the softmax is over the chosen ones alone, which is the same
            router_bias=True,
            bias=True,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture adds to a Llama, and what its missing keys mean."""

    head_dim: int | None = None
    attention_bias: bool = False  # the default of the key, which stands for q, k, v and o
    qkv_bias: bool = False  # q, k and v have a bias and o has none
    qk_norm: bool = False
    attention_sinks: bool = False
    windows: Windows = _no_windows
    experts: Callable[[_Keys, int], ExpertsConfig] | None = None


_FAMILIES = {
    "LlamaForCausalLM": _Family(),
    "MistralForCausalLM": _Family(windows=_windows_everywhere(4096)),
    "MixtralForCausalLM": _Family(windows=_windows_everywhere(None), experts=_mixtral_experts),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, windows=_windows_if_used),
    "Qwen2MoeForCausalLM": _Family(qkv_bias=True, windows=_windows_if_used, experts=_qwen_experts(has_shared=True)),
    "Qwen3ForCausalLM": _Family(head_dim=128, qk_norm=True, windows=_windows_if_used),
    "Qwen3MoeForCausalLM": _Family(qk_norm=True, windows=_windows_if_used, experts=_qwen_experts(has_shared=False)),
    "GptOssForCausalLM": _Family(
        head_dim=64,
        attention_bias=True,
        attention_sinks=True,
        windows=_alternating_windows,
        experts=_gpt_oss_experts,
    ),
}


ARCHITECTURES = tuple(_FAMILIES)
