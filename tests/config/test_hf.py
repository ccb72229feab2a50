"""What a config.json means, against the configuration classes of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.config import ARCHITECTURES, ModelConfig, read_hf_config
from strata.errors import CheckpointError, UnsupportedModelError
from strata.plan.shape import needed
from tests.models import tiny

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "max_position_embeddings": 256,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
# What read_hf_config needs beside the sizes.
NEEDED: dict[str, dict[str, Any]] = {
    "Qwen2MoeForCausalLM": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "Qwen3MoeForCausalLM": EXPERTS,
    "GptOssForCausalLM": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3NextForCausalLM": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "Qwen3_5MoeForCausalLM": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "Qwen3_5MoeForConditionalGeneration": {**EXPERTS, "shared_expert_intermediate_size": 32},
}
INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}
NEEDED |= {
    architecture: {**EXPERTS, **INDEXER, "shared_expert_intermediate_size": 32}
    for architecture in ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")
}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
QWEN4 = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")
HYBRID = ("Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration", *QWEN4)
NESTED = ("Qwen3_5MoeForConditionalGeneration", "Qwen4ExpForConditionalGeneration")

# Keys that say what a missing one would not; each is given to every architecture, also to those that do not know it.
VARIANTS: dict[str, dict[str, Any]] = {
    "nothing but sizes": {},
    "every head its own KV": {"num_key_value_heads": None},
    "grouped heads of their own size": {"num_key_value_heads": 4, "head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True, "qkv_bias": True},
    "no biases": {"attention_bias": False, "mlp_bias": False, "qkv_bias": False},
    "a window": {"sliding_window": 100},
    "no window": {"sliding_window": None},
    "a window that is used": {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 3},
    "a window of the usual size that is used": {"use_sliding_window": True, "max_window_layers": 0},
    "layers by their kinds": {
        "sliding_window": 100,
        "use_sliding_window": True,
        "layer_types": [FULL, SLIDING, SLIDING, FULL, FULL, SLIDING],
    },
    "theta beside": {"rope_theta": 12345.0},
    "scaling beside theta": {"rope_theta": 12345.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "both tables": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 3.0},
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    },
    "theta in the table": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 777.0, "factor": 2.0}},
    "sparse layers": {"decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "top-k normalised": {"norm_topk_prob": True},
    "limits": {"rms_norm_eps": 1e-3, "swiglu_limit": 5.0, "tie_word_embeddings": True},
}
# Of models with linear attention alone.
HYBRID_VARIANTS: dict[str, dict[str, Any]] = {
    "full attention in every third layer": {"full_attention_interval": 3},
    "full attention everywhere": {"full_attention_interval": 1},
    "linear layers by their kinds": {"layer_types": [FULL, LINEAR, LINEAR, FULL, FULL, LINEAR]},
    "another linear attention": {
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 9,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 3,
    },
    "half of each head is turned": {"partial_rotary_factor": 0.5},
    "half of each head is turned, in the table": {
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.5,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    },
}
# Of Qwen4's preview alone.
QWEN4_VARIANTS: dict[str, dict[str, Any]] = {
    "another number of streams": {"hc_count": 2, "hc_lowrank": 24},
    "another indexer": {"indexer_n_heads": 3, "indexer_budget": 24, "indexer_compress_ratio": 8},
    "indexed attention by its name": {"layer_types": [LINEAR, "indexed_attention", LINEAR, LINEAR, FULL, LINEAR]},
    "a gate that sigmoid opens": {"output_gate_type": "sigmoid"},
    "n-grams in two layers": {
        "ple_layer_ids": [6, 2],
        "ple_embed_dim": 48,
        "ngram_size": 4,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50,
        "ple_conv_kernel_size": 3,
        "eos_token_id": [5, 6],
    },
}


def variants(architecture: str) -> dict[str, dict[str, Any]]:
    return {
        **VARIANTS,
        **(HYBRID_VARIANTS if architecture in HYBRID else {}),
        **(QWEN4_VARIANTS if architecture in QWEN4 else {}),
    }


def keys_of(architecture: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with these keys; of a model that reads images, too, they are in a table of their own."""
    if architecture not in NESTED:
        return {**table, "architectures": [architecture]}
    tied = {key: table[key] for key in ("tie_word_embeddings",) if key in table}
    return {"architectures": [architecture], "text_config": table, **tied}


def windows(architecture: str, config: Any) -> tuple[int | None, ...]:
    """As the modelling code chooses masks: by ``layer_types``, but for three classes that have one mask for all."""
    window: int | None = getattr(config, "sliding_window", None)
    if architecture == "LlamaForCausalLM":
        return tuple([None] * config.num_hidden_layers)
    if architecture in ("MistralForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM"):
        return tuple([window] * config.num_hidden_layers)
    return tuple(window if kind == SLIDING else None for kind in config.layer_types)


def is_allowed(architecture: str, changes: Mapping[str, Any]) -> bool:
    """Whether the class of ``transformers`` takes the keys."""
    if changes.get("num_key_value_heads", 1) is None:
        return architecture in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
    if architecture in HYBRID:
        return SLIDING not in changes.get("layer_types", [])
    # gpt-oss' layers slide, so it needs a window.
    return architecture != "GptOssForCausalLM" or changes.get("sliding_window", 1) is not None


COMBINATIONS = [
    (architecture, variant)
    for architecture in ARCHITECTURES
    for variant, changes in variants(architecture).items()
    if is_allowed(architecture, changes)
]


def table_of(architecture: str, variant: str) -> dict[str, Any]:
    """The sizes, and what the variant has beside them."""
    return {**SIZES, **NEEDED.get(architecture, {}), **variants(architecture)[variant]}


@pytest.mark.parametrize(("architecture", "variant"), COMBINATIONS)
def test_reads_what_transformers_reads(architecture: str, variant: str) -> None:
    table = table_of(architecture, variant)
    whole = tiny.hf_config(architecture, table)
    expected = whole.get_text_config()
    found = read_hf_config(keys_of(architecture, table), origin="here")
    assert found.num_kv_heads == expected.num_key_value_heads
    assert found.head_dim == (getattr(expected, "head_dim", None) or SIZES["hidden_size"] // 32)
    assert found.rms_norm_eps == expected.rms_norm_eps
    assert found.rope.theta == expected.rope_parameters["rope_theta"]
    assert kind(found) == expected.rope_parameters["rope_type"]
    assert found.tie_word_embeddings == whole.tie_word_embeddings
    assert found.windows == windows(architecture, expected)
    if architecture == "GptOssForCausalLM":
        assert found.swiglu_limit == expected.swiglu_limit
    if architecture in HYBRID:
        assert found.linear_layers == tuple(kind == LINEAR for kind in expected.layer_types)
        assert found.rope.part == expected.rope_parameters.get("partial_rotary_factor", 1.0)
    if architecture in QWEN4:
        assert_is_qwen4(found, expected)
    if found.experts is not None:
        assert found.experts.num_experts_per_tok == expected.num_experts_per_tok
        assert found.experts.norm_topk_prob == getattr(expected, "norm_topk_prob", True)


def assert_is_qwen4(found: ModelConfig, expected: Any) -> None:
    streams, indexer = found.hyper_connections, found.indexer
    assert streams is not None
    assert indexer is not None
    assert found.linear_attention is None or (
        found.linear_attention.sigmoid_gate == (expected.output_gate_type == "sigmoid")
    )
    assert (streams.num_streams, streams.rank) == (expected.hc_count, expected.hc_lowrank)
    assert (indexer.num_heads, indexer.head_dim) == (expected.indexer_n_heads, expected.indexer_head_dim)
    assert (indexer.budget, indexer.group_size) == (expected.indexer_budget, expected.indexer_compress_ratio)
    assert (found.ngrams is None) == (not expected.ple_layer_ids)
    if found.ngrams is not None:
        assert found.ngram_conv_kernel_size == expected.ple_conv_kernel_size
        assert [layer + 1 for layer in found.ngrams.layers] == expected.ple_layer_ids


def kind(config: ModelConfig) -> str:
    scaling = config.rope.scaling
    return "default" if scaling is None else type(scaling).__name__.removesuffix("Scaling").lower()


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [case for case in COMBINATIONS if not any("rope" in key for key in variants(case[0])[case[1]])],
)
def test_needs_the_tensors_that_transformers_has(architecture: str, variant: str) -> None:
    table = table_of(architecture, variant)
    with torch.device("meta"):
        model = getattr(transformers, architecture)(tiny.hf_config(architecture, table))
    expected = {name: tuple(tensor.shape) for name, tensor in tiny.checkpoint(model).items()}
    specs = needed(read_hf_config(keys_of(architecture, table), origin="here"))
    assert {spec.name: spec.shape for spec in specs} == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reads_what_transformers_writes(architecture: str) -> None:
    table = keys_of(architecture, table_of(architecture, "nothing but sizes"))
    written = tiny.hf_config(architecture, table.get("text_config", table)).to_dict()
    found, again = (
        read_hf_config({**keys, "architectures": [architecture], "eos_token_id": 7}, origin="here")
        for keys in (table, written)
    )
    assert again == found


def read(architecture: str = "LlamaForCausalLM", **changes: Any) -> ModelConfig:
    table = {**SIZES, **NEEDED.get(architecture, {}), **changes}
    return read_hf_config(keys_of(architecture, table), origin="here/config.json")


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("LlamaForCausalLM", {"hidden_size": "512"}, "here/config.json: 'hidden_size' is '512'; a positive integer"),
        ("LlamaForCausalLM", {"num_hidden_layers": 10**9}, "'num_hidden_layers' is more than 1000, which no model has"),
        ("LlamaForCausalLM", {"vocab_size": 2**31}, "'vocab_size' is more than 2147483647"),
        ("LlamaForCausalLM", {"rms_norm_eps": 10**400}, "'rms_norm_eps' is 1000000.*; a positive number"),
        ("Qwen3MoeForCausalLM", {"num_experts": 10**9}, "'num_experts' is more than 4096"),
        ("LlamaForCausalLM", {"num_key_value_heads": 5}, "32 attention heads do not divide into 5 KV heads"),
        ("LlamaForCausalLM", {"head_dim": 15}, "a head has 15 dimensions; RoPE needs an even number"),
        ("LlamaForCausalLM", {"head_dim": 2}, "a head has 2 dimensions; RoPE needs an even number, 4 at least"),
        ("LlamaForCausalLM", {"attention_bias": 1}, "'attention_bias' is 1; true or false"),
        ("LlamaForCausalLM", {"rope_theta": -1.0}, "'rope_theta' is -1.0; a positive number"),
        ("LlamaForCausalLM", {"rope_theta": 1}, "'rope_theta' is 1.0; a number above 1"),
        ("LlamaForCausalLM", {"eos_token_id": "</s>"}, "'eos_token_id' is '</s>'; a token id or a list"),
        ("MistralForCausalLM", {"sliding_window": 0}, "'sliding_window' is 0; a positive integer"),
        ("Qwen3ForCausalLM", {"sliding_window": -1}, "'sliding_window' is -1; a positive integer"),  # though unused
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": -1}, "'max_window_layers' is -1"),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "layer_types": [FULL]}, "'layer_types' must be a list of 6"),
        ("Qwen3MoeForCausalLM", {"num_experts_per_tok": 9}, "a token takes 9 experts, but there are 8"),
        ("Qwen3MoeForCausalLM", {"moe_intermediate_size": None}, "'moe_intermediate_size' is None; a positive integer"),
        ("Qwen2MoeForCausalLM", {"mlp_only_layers": "none"}, "'mlp_only_layers' is 'none'; a list of layer numbers"),
        (
            HYBRID[0],
            {"layer_types": [LINEAR]},
            "'layer_types' is .*; a list of 6 entries is needed, each one of linear_",
        ),
        (
            HYBRID[0],
            {"layer_types": [FULL, LINEAR, SLIDING] * 2},
            "'layer_types' is .*each one of linear_attention, full",
        ),
        (HYBRID[0], {"full_attention_interval": 0}, "'full_attention_interval' is 0; a positive integer"),
        (
            HYBRID[0],
            {"linear_num_value_heads": 24},
            "'linear_num_value_heads' is 24; a multiple of 'linear_num_key_heads'",
        ),
        (HYBRID[0], {"linear_num_key_heads": 10**9}, "'linear_num_key_heads' is more than 4096"),
        ("LlamaForCausalLM", {"num_attention_heads": 10**9}, "'num_attention_heads' is more than 4096"),
        (HYBRID[0], {"linear_conv_kernel_dim": 1}, "'linear_conv_kernel_dim' is 1; 2 or more is needed"),
        (HYBRID[0], {"partial_rotary_factor": 2.0}, "'partial_rotary_factor' is 2.0; a number above 0, 1 at most"),
        (HYBRID[0], {"head_dim": 12}, "a head has 12 dimensions, of which 3 are turned; RoPE needs an even number"),
        (QWEN4[0], {"hc_count": 1}, "'hc_count' is 1; 2 or more is needed"),
        (QWEN4[0], {"indexer_budget": 30}, "a multiple of 'indexer_compress_ratio', 4, is needed"),
        (QWEN4[0], {"indexer_head_dim": 16}, "'indexer_head_dim' is 16, but RoPE turns 256 dimensions of a head"),
        (QWEN4[0], {"indexer_budget": None, "indexer_head_dim": None}, "indexer_head_dim, indexer_budget are missing"),
        (
            QWEN4[0],
            {"ple_layer_ids": [4], "eos_token_id": 1},
            r"'ple_layer_ids' is \[4\]; layers with linear attention are needed",
        ),
        (NESTED[0], {"hidden_size": None}, "here/config.json: 'hidden_size' is None; a positive integer"),
    ],
)
def test_what_is_wrong_is_named(architecture: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(architecture, **changes)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("LlamaForCausalLM", {"hidden_act": "gelu"}, "the activation 'gelu' is not supported; supported: silu"),
        ("GptOssForCausalLM", {"swiglu_alpha": 1.0}, "'swiglu_alpha' is 1.0; supported: 1.702"),
        (QWEN4[0], {"indexer_kv_heads": 2}, "'indexer_kv_heads' is 2; indexers whose heads share one key"),
        (QWEN4[0], {"output_gate_type": "tanh"}, "'output_gate_type' is 'tanh'; sigmoid and silu are supported"),
        ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "RoPE turns 0.5 of each head's dimensions"),
        (HYBRID[0], {"layer_types": [LINEAR] * 6}, "all 6 layers have linear attention; models in which one at least"),
    ],
)
def test_what_no_model_here_does_is_refused(architecture: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(architecture, **changes)


def test_an_unknown_architecture_is_answered_with_those_that_are_known() -> None:
    """Whatever else its config lacks."""
    with pytest.raises(UnsupportedModelError) as caught:
        read_hf_config({"architectures": ["GPT2LMHeadModel"], "n_layer": 12}, origin="here/config.json")
    assert str(caught.value) == (
        "here/config.json: architecture 'GPT2LMHeadModel' is not supported; supported: GptOssForCausalLM, "
        "LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM, Qwen2MoeForCausalLM, "
        "Qwen3ForCausalLM, Qwen3MoeForCausalLM, Qwen3NextForCausalLM, Qwen3_5MoeForCausalLM, "
        "Qwen3_5MoeForConditionalGeneration, Qwen4ExpForCausalLM, Qwen4ExpForConditionalGeneration"
    )


def test_the_table_of_what_reads_text_is_needed() -> None:
    with pytest.raises(CheckpointError, match="'text_config' is 3; a table is needed"):
        read_hf_config({"architectures": [NESTED[0]], "text_config": 3}, origin="here")


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [3]])
def test_an_architecture_is_needed(architectures: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'architectures' is .*; a list with the class name is needed"):
        read_hf_config({**SIZES, "architectures": architectures}, origin="here")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.integers()
    | st.floats()
    | st.sampled_from([FULL, "yarn", "x"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from(["factor", "rope_type"]), inner),
    max_leaves=6,
)
KEYS = sorted(
    {key for changes in (SIZES, EXPERTS, *VARIANTS.values(), *HYBRID_VARIANTS.values()) for key in changes}
    | {"hidden_act"}
)


@given(architecture=st.sampled_from(ARCHITECTURES), changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_values_are_read_or_refused(architecture: str, changes: dict[str, Any]) -> None:
    try:
        config = read(architecture, **changes)
    except CheckpointError as error:
        assert "here/config.json" in str(error)  # noqa: PT017
    else:
        assert len(config.windows) == len(config.expert_layers) == len(config.linear_layers) == config.num_layers
