"""A Hugging Face ``config.json``: what its keys mean for each architecture, and what it means when one is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from strata.config import qwen4
from strata.config.hybrid import FULL, INDEXED, MAX_HEADS, linear_attention, linear_layers
from strata.config.keys import Keys
from strata.config.model import ExpertsConfig, ModelConfig
from strata.config.rope import read_rope
from strata.errors import CheckpointError, UnsupportedModelError

_SWIGLU_ALPHA = 1.702  # of every gpt-oss that was published

# Several times what the largest models have: a damaged number must not become a list of a billion tensors.
MAX_LAYERS = 1000
MAX_EXPERTS = 4096  # of a layer


def read_hf_config(table: Mapping[str, Any], *, origin: str) -> ModelConfig:
    """Read a Hugging Face ``config.json``; ``origin`` names the file in errors.

    What a key that is missing means depends on the architecture, as in Hugging Face's configuration classes; only the
    sizes must be there. Raises CheckpointError naming the key that is missing or of the wrong type,
    UnsupportedModelError for an architecture, an activation or a RoPE that no model here has.
    """
    architecture, family = _family_of(table, origin)
    keys = Keys(_text_part(table, origin) if family.nested else table, origin)
    _check_activation(keys)
    if keys.get("sliding_window", 0) != 0:  # which stands for none where another key switches windows off
        keys.whole("sliding_window")
    num_layers = keys.whole("num_hidden_layers", most=MAX_LAYERS)
    hidden_size = keys.whole("hidden_size")
    rope = read_rope(keys, family.rope_theta, family.rope_scaling, family.rotary_part)
    num_heads, num_kv_heads, head_dim = _heads(keys, family, hidden_size, rope.part)
    intermediate_size = keys.whole(family.intermediate_key)
    experts = family.experts(keys, intermediate_size) if family.experts else None
    full = (FULL, INDEXED) if family.qwen4 else (FULL,)
    linear = linear_layers(keys, num_layers, full) if family.hybrid else (False,) * num_layers
    ngrams, ngram_conv_kernel_size = qwen4.ngrams(keys, linear) if family.qwen4 else (None, 0)
    has_bias = family.has_bias if family.bias_key is None else keys.flag(family.bias_key, family.has_bias)
    return ModelConfig(
        architecture=architecture,
        vocab_size=keys.whole("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=keys.number("rms_norm_eps", family.rms_norm_eps),
        max_position_embeddings=keys.whole("max_position_embeddings"),
        rope=rope,
        tie_word_embeddings=Keys(table, origin).flag("tie_word_embeddings", False),
        qkv_bias=has_bias,
        o_bias=has_bias and family.bias_key == "attention_bias",
        mlp_bias=family.mlp_bias and keys.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        attention_sinks=family.attention_sinks,
        gated_attention=family.hybrid,
        zero_centred_norms=family.hybrid,
        windows=family.windows(keys, num_layers),
        experts=experts,
        expert_layers=_sparse_layers(keys, num_layers) if family.sparse else (experts is not None,) * num_layers,
        linear_attention=linear_attention(keys, gate_key=family.qwen4) if any(linear) else None,
        linear_layers=linear,
        hyper_connections=qwen4.hyper_connections(keys) if family.qwen4 else None,
        indexer=qwen4.indexer(keys, int(head_dim * rope.part)) if family.qwen4 else None,
        ngrams=ngrams,
        ngram_conv_kernel_size=ngram_conv_kernel_size,
        swiglu_limit=_swiglu_limit(keys) if family.clamped_swiglu else None,
        eos_token_ids=token_ids(table, "eos_token_id", origin=origin)
        or token_ids(keys.table, "eos_token_id", origin=origin),
    )


def _text_part(table: Mapping[str, Any], origin: str) -> Mapping[str, Any]:
    """The table of the part that reads text, in a model that has others, too."""
    found = table.get("text_config")
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{origin}: 'text_config' is {found!r}; a table is needed")
    return found


def _family_of(table: Mapping[str, Any], origin: str) -> tuple[str, _Family]:
    """The architecture's name, and what its models have in common."""
    architectures = table.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(f"{origin}: 'architectures' is {architectures!r}; a list with the class name is needed")
    family = _FAMILIES.get(architectures[0])
    if family is None:
        raise UnsupportedModelError(
            f"{origin}: architecture {architectures[0]!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return architectures[0], family


def _heads(keys: Keys, family: _Family, hidden_size: int, part: float) -> tuple[int, int, int]:
    """Numbers of query and of KV heads, and the dimensions of one, of which RoPE turns ``part``."""
    num_heads = keys.whole("num_attention_heads", most=MAX_HEADS)
    # null is not a missing key here: it gives every query head a KV head of its own.
    missing = family.num_kv_heads if "num_key_value_heads" not in keys.table else None
    num_kv_heads = keys.whole("num_key_value_heads", missing or num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(f"{keys.origin}: {num_heads} attention heads do not divide into {num_kv_heads} KV heads")
    head_dim = keys.whole("head_dim", family.head_dim or hidden_size // num_heads)
    turned = int(head_dim * part)
    if head_dim % 2 or turned % 2 or turned < 4:
        what = f"{head_dim} dimensions" if part == 1 else f"{head_dim} dimensions, of which {turned} are turned"
        raise CheckpointError(f"{keys.origin}: a head has {what}; RoPE needs an even number, 4 at least")
    return num_heads, num_kv_heads, head_dim


def token_ids(table: Mapping[str, Any], key: str, *, origin: str) -> tuple[int, ...]:
    """A token id, or a list of them, or none; raises CheckpointError naming the key of ``origin`` for anything else."""
    value = table.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and item >= 0 for item in values):
        raise CheckpointError(f"{origin}: {key!r} is {value!r}; a token id or a list of them is needed")
    return tuple(values)


def _check_activation(keys: Keys) -> None:
    found = keys.get("hidden_act", "silu")
    if found not in ("silu", "swish"):
        raise UnsupportedModelError(f"{keys.origin}: the activation {found!r} is not supported; supported: silu")


def _swiglu_limit(keys: Keys) -> float:
    alpha = keys.number("swiglu_alpha", _SWIGLU_ALPHA)
    if alpha != _SWIGLU_ALPHA:
        raise UnsupportedModelError(f"{keys.origin}: 'swiglu_alpha' is {alpha}; supported: {_SWIGLU_ALPHA}")
    return keys.number("swiglu_limit", 7.0)


Windows: TypeAlias = "Callable[[Keys, int], tuple[int | None, ...]]"


def _no_windows(_: Keys, num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def _windows_everywhere(default: int | None) -> Windows:
    """Mistral and Mixtral: one window for all layers; null switches it off, a missing key takes the default."""

    def windows(keys: Keys, num_layers: int) -> tuple[int | None, ...]:
        if keys.table.get("sliding_window", default) is None:
            return (None,) * num_layers
        return (keys.whole("sliding_window", default),) * num_layers

    return windows


def _windows_if_used(slides: Callable[[int, int], bool] | None) -> Windows:
    """Qwen: ``use_sliding_window`` turns them on, for the layers that ``layer_types`` or, without it, ``slides`` (of
    the layer and of ``max_window_layers``) tells; for all layers where ``slides`` is None."""

    def windows(keys: Keys, num_layers: int) -> tuple[int | None, ...]:
        if not keys.flag("use_sliding_window", False) or keys.table.get("sliding_window", 4096) is None:
            return (None,) * num_layers
        window = keys.whole("sliding_window", 4096)
        if slides is None:
            return (window,) * num_layers
        if keys.get("layer_types") is not None:
            return _by_layer_types(keys, num_layers, window)
        bound = keys.get("max_window_layers", 28)
        if type(bound) is not int or bound < 0:
            raise CheckpointError(f"{keys.origin}: 'max_window_layers' is {bound!r}; an integer of 0 or more is needed")
        return tuple(window if slides(layer, bound) else None for layer in range(num_layers))

    return windows


def _alternating_windows(keys: Keys, num_layers: int) -> tuple[int | None, ...]:
    """gpt-oss: every second layer, beginning with the first, unless ``layer_types`` says otherwise."""
    window = keys.whole("sliding_window", 128)
    if keys.get("layer_types") is not None:
        return _by_layer_types(keys, num_layers, window)
    return tuple(window if layer % 2 == 0 else None for layer in range(num_layers))


def _by_layer_types(keys: Keys, num_layers: int, window: int) -> tuple[int | None, ...]:
    kinds = keys.table["layer_types"]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise CheckpointError(
            f"{keys.origin}: 'layer_types' must be a list of {num_layers} entries, each one of {', '.join(known)}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _sparse_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Qwen: experts in every ``decoder_sparse_step``-th layer, but not in those of ``mlp_only_layers``."""
    step = keys.whole("decoder_sparse_step", 1)
    dense = keys.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise CheckpointError(f"{keys.origin}: 'mlp_only_layers' is {dense!r}; a list of layer numbers is needed")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))


def _counts(keys: Keys, num_experts: int | None = None, per_token: int | None = None) -> tuple[int, int]:
    """Experts of a layer and of a token. Each has two spellings, which ``transformers`` mixes from class to class and
    from version to version."""
    count = keys.whole("num_experts", keys.get("num_local_experts", num_experts), most=MAX_EXPERTS)
    top_k = keys.whole("num_experts_per_tok", keys.get("experts_per_token", per_token))
    if top_k > count:
        raise CheckpointError(f"{keys.origin}: a token takes {top_k} experts, but there are {count}")
    return count, top_k


def _mixtral_experts(keys: Keys, intermediate_size: int) -> ExpertsConfig:
    num_experts, per_token = _counts(keys, 8, 2)
    return ExpertsConfig(
        num_experts=num_experts,
        num_experts_per_tok=per_token,
        intermediate_size=intermediate_size,
        shared_intermediate_size=0,
        norm_topk_prob=True,
        router_bias=False,
        bias=False,
    )


def _qwen_experts(has_shared: bool, *, normalized: bool = False) -> Callable[[Keys, int], ExpertsConfig]:
    """``normalized``: what it means that ``norm_topk_prob`` is missing."""

    def experts(keys: Keys, _: int) -> ExpertsConfig:
        num_experts, per_token = _counts(keys)
        return ExpertsConfig(
            num_experts=num_experts,
            num_experts_per_tok=per_token,
            intermediate_size=keys.whole("moe_intermediate_size"),
            shared_intermediate_size=keys.whole("shared_expert_intermediate_size") if has_shared else 0,
            norm_topk_prob=keys.flag("norm_topk_prob", normalized),
            router_bias=False,
            bias=False,
        )

    return experts


def _gpt_oss_experts(keys: Keys, intermediate_size: int) -> ExpertsConfig:
    num_experts, per_token = _counts(keys)
    return ExpertsConfig(
        num_experts=num_experts,
        num_experts_per_tok=per_token,
        intermediate_size=intermediate_size,
        shared_intermediate_size=0,
        norm_topk_prob=True,  # the softmax is over the chosen ones alone, which is the same
        router_bias=True,
        bias=True,
    )


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture adds to a Llama, and what its missing keys mean."""

    num_kv_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    bias_key: str | None = None  # "attention_bias" stands for q, k, v and o, "qkv_bias" for the first three
    has_bias: bool = False  # when that key is missing, or there is none
    mlp_bias: bool = False  # the key is known
    qk_norm: bool = False
    attention_sinks: bool = False
    clamped_swiglu: bool = False
    windows: Windows = _no_windows
    experts: Callable[[Keys, int], ExpertsConfig] | None = None
    sparse: bool = False  # keys say which layers have experts; otherwise all have
    intermediate_key: str = "intermediate_size"
    hybrid: bool = False  # linear attention in some layers; the others' has gates; norms add 1
    rotary_part: float | None = None  # of a head that RoPE turns, where models turn parts
    qwen4: bool = False  # hyper-connections, indexed attention, n-grams
    nested: bool = False  # the keys are in a table of their own, "text_config"


_QWEN_WINDOWS = _windows_if_used(lambda layer, bound: layer >= bound)

_QWEN3_NEXT = _Family(
    num_kv_heads=2,
    head_dim=256,
    bias_key="attention_bias",
    qk_norm=True,
    experts=_qwen_experts(has_shared=True, normalized=True),
    sparse=True,
    hybrid=True,
    rotary_part=0.25,
)
_QWEN3_5_MOE = replace(_QWEN3_NEXT, sparse=False, intermediate_key="moe_intermediate_size")  # no layer is without
_QWEN4 = replace(_QWEN3_5_MOE, rotary_part=1.0, qwen4=True)

_FAMILIES = {
    "LlamaForCausalLM": _Family(bias_key="attention_bias", mlp_bias=True),
    "MistralForCausalLM": _Family(num_kv_heads=8, windows=_windows_everywhere(4096)),
    "MixtralForCausalLM": _Family(
        num_kv_heads=8,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        windows=_windows_everywhere(None),
        experts=_mixtral_experts,
    ),
    "Qwen2ForCausalLM": _Family(num_kv_heads=32, has_bias=True, windows=_QWEN_WINDOWS),
    "Qwen2MoeForCausalLM": _Family(
        num_kv_heads=16,
        bias_key="qkv_bias",
        has_bias=True,
        windows=_windows_if_used(lambda layer, bound: layer % 2 == 0 and layer < bound),
        experts=_qwen_experts(has_shared=True),
        sparse=True,
    ),
    "Qwen3ForCausalLM": _Family(
        num_kv_heads=32, head_dim=128, bias_key="attention_bias", qk_norm=True, windows=_QWEN_WINDOWS
    ),
    "Qwen3MoeForCausalLM": _Family(
        num_kv_heads=4,
        bias_key="attention_bias",
        qk_norm=True,
        windows=_windows_if_used(None),
        experts=_qwen_experts(has_shared=False),
        sparse=True,
    ),
    "Qwen3NextForCausalLM": _QWEN3_NEXT,
    "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": replace(_QWEN3_5_MOE, nested=True),
    "Qwen4ExpForCausalLM": _QWEN4,
    "Qwen4ExpForConditionalGeneration": replace(_QWEN4, nested=True),
    "GptOssForCausalLM": _Family(
        num_kv_heads=8,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=150_000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        bias_key="attention_bias",
        has_bias=True,
        attention_sinks=True,
        clamped_swiglu=True,
        windows=_alternating_windows,
        experts=_gpt_oss_experts,
    ),
}

ARCHITECTURES = tuple(sorted(_FAMILIES))
