"""Tiny models of every architecture and RoPE scaling, and what must be seen when one of their features is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from strata import quant
from strata.config import DynamicScaling, Llama3Scaling, ModelConfig, YarnScaling
from strata.runner.runner import Runner
from tests.models import tiny

TOKENS = 200  # beyond the original context of every scaling, and several windows long

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
HYBRID = {
    **EXPERTS,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "shared_expert_intermediate_size": 96,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
QWEN4 = {
    **HYBRID,
    "hc_count": 3,
    "hc_lowrank": 20,
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 48,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 101,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 4,
    "eos_token_id": 80,  # of which TOKENS have several
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 24,
    "indexer_budget": 24,
    "indexer_compress_ratio": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}


@dataclass(frozen=True)
class Case:
    """A class of ``transformers`` and the keys of its config that differ from ``tiny.SETTINGS``."""

    architecture: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_model_len: int | None = None


CASES = {
    "llama 2, every head its own KV": Case("LlamaForCausalLM", {"num_key_value_heads": 6}),
    "llama, grouped heads, tied head": Case("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama 3 rope, all biases": Case(
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "linear rope, wide heads": Case(
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
            "head_dim": 32,
            "num_key_value_heads": 1,
        },
    ),
    "dynamic rope": Case(
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0},
            "max_position_embeddings": 64,
        },
        max_model_len=TOKENS,  # transformers scales by the longest sequence, so they must agree on it
    ),
    "yarn rope": Case("LlamaForCausalLM", {"rope_parameters": YARN}),
    "yarn rope, own numbers": Case(
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                **YARN,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "truncate": False,
            }
        },
    ),
    "mistral": Case("MistralForCausalLM", {"sliding_window": 24}),
    "mixtral": Case("MixtralForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": Case("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    "qwen2 moe, a dense layer": Case(
        "Qwen2MoeForCausalLM",
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 96,
            "norm_topk_prob": False,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 32,
            "max_window_layers": 2,
        },
    ),
    "qwen2 moe, every second layer, no biases": Case(
        "Qwen2MoeForCausalLM",
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 96,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "qkv_bias": False,
        },
    ),
    "qwen3": Case(
        "Qwen3ForCausalLM",
        {
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 33,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3 moe": Case("Qwen3MoeForCausalLM", {**EXPERTS, "norm_topk_prob": True, "attention_bias": True}),
    "gpt-oss": Case(
        "GptOssForCausalLM",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "sliding_window": 24,
            "swiglu_limit": 1.0,  # of the published models 7.0, which nothing here reaches
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "qwen3 next": Case("Qwen3NextForCausalLM", HYBRID),
    "qwen3 next, yarn, a dense layer, all biases": Case(
        "Qwen3NextForCausalLM",
        {
            **HYBRID,
            "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"],
            "linear_num_value_heads": 2,
            "linear_conv_kernel_dim": 3,
            "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
            "mlp_only_layers": [1],
            "attention_bias": True,
            "norm_topk_prob": False,
        },
    ),
    "qwen3.5 moe": Case(
        "Qwen3_5MoeForConditionalGeneration",
        {
            **HYBRID,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
        },
    ),
    "qwen4": Case("Qwen4ExpForCausalLM", {**QWEN4, "num_experts_per_tok": 5, "output_gate_type": "sigmoid"}),
    "qwen4, pairs of streams, groups and grams, all of each index head turned": Case(
        "Qwen4ExpForConditionalGeneration",
        {
            **QWEN4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
            "hc_count": 2,
            "ngram_size": 2,
            "heads_per_ngram": 3,
            "ple_layer_ids": [3],
            "ple_conv_kernel_size": 3,
            "eos_token_id": [80, 3],
            "indexer_head_dim": 16,
            "indexer_budget": 30,
            "indexer_compress_ratio": 2,
            "norm_topk_prob": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
    ),
}


@cache
def made(name: str) -> tuple[Any, list[int], Tensor]:
    """A random model, tokens, and the reference's logits of them."""
    case = CASES[name]
    model = tiny.hf_model(case.architecture, **case.settings)
    token_ids = torch.randint(0, 160, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()
    return model, token_ids, tiny.reference_logits(model, token_ids)


def runner_of(
    name: str, *, config: ModelConfig | None = None, tensors: dict[str, Any] | None = None, device: str = "cpu"
) -> Runner:
    """A runner of the case's model, with another config or other tensors if they are given."""
    model = made(name)[0]
    return tiny.runner_of(
        config or tiny.model_config(model),
        tensors or tiny.checkpoint(model),
        device=device,
        max_model_len=CASES[name].max_model_len,
    )


def packed_experts(name: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case's tensors with the experts' matrices in a bit format, and with the numbers that these stand for."""
    tensors = tiny.checkpoint(made(name)[0])
    packed = {
        key: quant.get(kind).pack(tensor)
        for key, tensor in tensors.items()
        if ".experts." in key and key.endswith(".weight")
    }
    numbers = {key: quant.get(kind).unpack(weight) for key, weight in packed.items()}
    return tensors | packed, tensors | numbers


Change = Callable[[ModelConfig], ModelConfig]


def _rope(**changes: Any) -> Change:
    return lambda config: replace(config, rope=replace(config.rope, **changes))


def _scaling(**changes: Any) -> Change:
    def change(config: ModelConfig) -> ModelConfig:
        scaling = config.rope.scaling
        assert isinstance(scaling, DynamicScaling | Llama3Scaling | YarnScaling)
        return replace(config, rope=replace(config.rope, scaling=replace(scaling, **changes)))

    return change


def _windows(change: Callable[[int], int | None]) -> Change:
    return lambda config: replace(
        config, windows=tuple(None if window is None else change(window) for window in config.windows)
    )


def _experts(**changes: Any) -> Change:
    def change(config: ModelConfig) -> ModelConfig:
        assert config.experts is not None
        return replace(config, experts=replace(config.experts, **changes))

    return change


def _indexer(**changes: Any) -> Change:
    def change(config: ModelConfig) -> ModelConfig:
        assert config.indexer is not None
        return replace(config, indexer=replace(config.indexer, **changes))

    return change


def _ngrams(**changes: Any) -> Change:
    def change(config: ModelConfig) -> ModelConfig:
        assert config.ngrams is not None
        return replace(config, ngrams=replace(config.ngrams, **changes))

    return change


def _linear(**changes: Any) -> Change:
    def change(config: ModelConfig) -> ModelConfig:
        assert config.linear_attention is not None
        return replace(config, linear_attention=replace(config.linear_attention, **changes))

    return change


CONFIG_FAULTS: dict[str, tuple[str, Change]] = {
    "wrong theta": ("llama, grouped heads, tied head", _rope(theta=20_000.0)),
    "llama3 scaling dropped": ("llama 3 rope, all biases", _rope(scaling=None)),
    "llama3 scaling from another context": ("llama 3 rope, all biases", _scaling(original_positions=512)),
    "linear scaling dropped": ("linear rope, wide heads", _rope(scaling=None)),
    "dynamic scaling dropped": (
        "dynamic rope",
        lambda config: replace(config, max_position_embeddings=TOKENS, rope=replace(config.rope, scaling=None)),
    ),
    "dynamic scaling from another context": ("dynamic rope", _scaling(original_positions=100)),
    "yarn dropped": ("yarn rope", _rope(scaling=None)),
    "yarn's factor of cos and sin dropped": ("yarn rope", _scaling(attention_factor=1.0)),
    "yarn not rounded": ("yarn rope", _scaling(truncate=False)),
    "yarn rounded": ("gpt-oss", _scaling(truncate=True)),
    "yarn with another beta": ("yarn rope, own numbers", _scaling(beta_fast=32.0)),
    "mistral's window dropped": ("mistral", _windows(lambda window: None)),
    "mistral's window one too long": ("mistral", _windows(lambda window: window + 1)),
    "qwen2's window dropped": ("qwen2", _windows(lambda window: None)),
    "qwen2 moe's window dropped": ("qwen2 moe, a dense layer", _windows(lambda window: None)),
    "qwen3's window one too short": ("qwen3", _windows(lambda window: window - 1)),
    "gpt-oss' window dropped": ("gpt-oss", _windows(lambda window: None)),
    "mixtral's top-k not normalised": ("mixtral", _experts(norm_topk_prob=False)),
    "qwen3's top-k not normalised": ("qwen3 moe", _experts(norm_topk_prob=False)),
    "qwen2's top-k normalised": ("qwen2 moe, a dense layer", _experts(norm_topk_prob=True)),
    "one expert too few": ("qwen3 moe", _experts(num_experts_per_tok=2)),
    "gpt-oss' activation not clamped": ("gpt-oss", lambda config: replace(config, swiglu_limit=1e9)),
    "all of each head turned": ("qwen3 next", _rope(part=1.0)),
    "a smaller part of each head turned": ("qwen3.5 moe", _rope(part=0.125)),
    "yarn over a part of each head dropped": ("qwen3 next, yarn, a dense layer, all biases", _rope(scaling=None)),
    "norms not centred on zero": ("qwen3 next", lambda config: replace(config, zero_centred_norms=False)),
    "qwen3 next's top-k not normalised": ("qwen3 next", _experts(norm_topk_prob=False)),
    "silu for the output's gate": ("qwen4", _linear(sigmoid_gate=False)),
    "the indexer chooses a group less": ("qwen4", _indexer(budget=20)),
    "attention to all": ("qwen4", _indexer(budget=512)),
    "groups twice as large": ("qwen4", _indexer(group_size=8)),
    "n-grams hashed by another seed": ("qwen4", _ngrams(seed=1)),
    "n-grams that do not end at an end of text": ("qwen4", _ngrams(eos_token_id=159)),
}

TENSOR_FAULTS: dict[str, tuple[str, str, Callable[[Tensor], Tensor]]] = {
    "sinks dropped": ("gpt-oss", ".sinks", lambda sinks: sinks - 1e4),
    "router's bias dropped": ("gpt-oss", ".mlp.gate.bias", torch.zeros_like),
    "experts' bias dropped": ("gpt-oss", ".down_proj.bias", torch.zeros_like),
    "o's bias dropped": ("gpt-oss", ".o_proj.bias", torch.zeros_like),
    "shared expert's gate half open": ("qwen2 moe, a dense layer", ".shared_expert_gate.weight", torch.zeros_like),
    "shared expert dropped": ("qwen2 moe, a dense layer", ".shared_expert.down_proj.weight", torch.zeros_like),
    "q's bias dropped": ("qwen2", ".q_proj.bias", torch.zeros_like),
    "norm of q without its weight": ("qwen3", ".q_norm.weight", torch.ones_like),
    "norm of k without its weight": ("qwen3 moe", ".k_norm.weight", torch.ones_like),
    "attention's gates half open": ("qwen3 next", ".self_attn.gate_proj.weight", torch.zeros_like),
    "attention's gates another head's": ("qwen3.5 moe", ".self_attn.gate_proj.weight", lambda gate: gate.roll(32, 0)),
    "norm of q centred on one": ("qwen3.5 moe", ".q_norm.weight", torch.zeros_like),
    "norm of linear attention without its weight": ("qwen3 next", ".linear_attn.norm.weight", torch.ones_like),
    "keys one head on": (
        "qwen3 next",
        ".in_proj_qkv.weight",
        lambda qkv: torch.cat([qkv[:32], qkv[32:64].roll(16, 0), qkv[64:]]),
    ),
    "the output's gate another head's": ("qwen3 next", ".in_proj_z.weight", lambda gate: gate.roll(24, 0)),
    "the newest input of the convolution alone": (
        "qwen3 next",
        ".conv1d.weight",
        lambda weight: torch.cat([torch.zeros_like(weight[..., :-1]), weight[..., -1:]], -1),
    ),
    "states that do not fade": ("qwen3 next", ".A_log", lambda decay: decay - 30),
    "decay without its bias": ("qwen3.5 moe", ".dt_bias", torch.zeros_like),
    "every token written as strongly": ("qwen3.5 moe", ".in_proj_b.weight", torch.zeros_like),
    "streams that take all alike": ("qwen4", ".block_inject_weight.weight", torch.zeros_like),
    "streams mixed alike": ("qwen4", ".input_mix_weight_up.weight", torch.zeros_like),
    "the last mixture without its norm's weight": ("qwen4", "connection_mixer.hc_norm.weight", torch.zeros_like),
    "another stream's norm": ("qwen4", "mlp_hyper_connection.hc_norm.weight", lambda weight: weight.roll(96, 0)),
    "index queries some rows on": (
        "qwen4",
        ".index_qk_proj.weight",
        lambda qk: torch.cat([qk[:96].roll(5, 0), qk[96:]]),
    ),
    "index keys without their norm's weight": ("qwen4", ".indexer.k_layernorm.weight", torch.zeros_like),
    "index queries without their norm's weight": ("qwen4", ".indexer.q_layernorm.weight", torch.zeros_like),
    "n-grams one row on": ("qwen4", ".ngram_embedding.weight", lambda rows: rows.roll(1, 0)),
    "n-grams' gates half open": ("qwen4", ".ple.key_proj.weight", torch.zeros_like),
    "n-grams without their convolution": ("qwen4", ".ple.conv1d.weight", torch.zeros_like),
    "n-grams' oldest input dropped": (
        "qwen4",
        ".ple.conv1d.weight",
        lambda weight: torch.cat([torch.zeros_like(weight[..., :1]), weight[..., 1:]], -1),
    ),
    "n-grams' values normalised otherwise": ("qwen4", ".ple.norm_conv.weight", torch.zeros_like),
    "the convolution's oldest input dropped": (
        "qwen3.5 moe",
        ".conv1d.weight",
        lambda weight: torch.cat([torch.zeros_like(weight[..., :1]), weight[..., 1:]], -1),
    ),
}
