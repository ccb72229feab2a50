"""Which tensors a model needs: names, shapes and roles as a pure function of its configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from strata import quant
from strata.config import ModelConfig
from strata.config.ngram import NGramConfig
from strata.errors import CheckpointError


class Role(StrEnum):
    """What a tensor is for, which decides how many bits it keeps."""

    EMBEDDING = "embedding"  # token embedding or output head: never below 8 bits
    MATRIX = "matrix"  # weight of a linear layer
    EXPERT = "expert"  # weight of a routed expert
    ROUTER = "router"  # which experts or keys a token takes, how much of the shared expert: never below 16 bits
    MIXER = "mixer"  # what blocks take of the residual streams, and what these take of them: never below 8 bits
    NGRAMS = "ngrams"  # embeddings of n-grams, rows that are read as tokens need them: kept in 16 bits
    DECAY = "decay"  # what a token leaves of a state, how much it adds to it: never below 16 bits
    VECTOR = "vector"  # norm, bias, sinks or convolution: kept as it is


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One needed tensor, under its canonical name: Hugging Face's of Qwen, whatever the architecture. The experts'
    matrices are ``model.layers.L.mlp.experts.E.gate_proj.weight``, ``up_proj`` and ``down_proj``, one tensor each, the
    router is ``model.layers.L.mlp.gate.weight``; attention's gates are ``model.layers.L.self_attn.gate_proj.weight``;
    linear attention's names are those of Qwen3.5, those of residual streams, indexers and n-grams Qwen4's. Sources that
    name, stack or fuse them otherwise translate."""

    name: str
    shape: tuple[int, ...]
    role: Role
    expert: tuple[int, int] | None = None  # (layer, expert) whose blob holds it


def needed(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """The tensors of the model in the order in which a forward pass reads them."""
    return tuple(_specs(config))


def expert_name(layer: int, expert: int) -> str:
    """What the names of a routed expert's tensors begin with, before ``.gate_proj.weight``."""
    return f"model.layers.{layer}.mlp.experts.{expert}"


def check(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], *, origin: str) -> tuple[TensorSpec, ...]:
    """The needed tensors, after a check that ``shapes`` holds each of them and nothing that is unknown.

    Raises CheckpointError naming every tensor that is missing, of another shape, or not known.
    """
    specs = needed(config)
    missing = [spec.name for spec in specs if spec.name not in shapes]
    wrong = [
        f"{spec.name} is {list(shapes[spec.name])}, needed is {list(spec.shape)}"
        for spec in specs
        if spec.name in shapes and shapes[spec.name] != spec.shape
    ]
    known = {spec.name for spec in specs}
    ignored = _ignored(config)
    unknown = [name for name in shapes if name not in known and not ignored.fullmatch(name)]
    faults = [
        f"{what}: {_listed(names)}"
        for what, names in (("missing tensors", missing), ("wrong shapes", wrong), ("unknown tensors", unknown))
        if names
    ]
    if faults:
        raise CheckpointError(f"{origin} does not fit a {config.architecture} of its config: {'; '.join(faults)}")
    return specs


def stored_format(spec: TensorSpec, dtype: str) -> str | None:
    """The bit format in which a store of ``dtype`` keeps the tensor; None keeps the type of the source."""
    if spec.role is Role.VECTOR:
        return None
    if spec.role in (Role.ROUTER, Role.DECAY, Role.NGRAMS):
        return "bf16"
    name = "int8" if spec.role in (Role.EMBEDDING, Role.MIXER) and dtype != "bf16" else dtype
    rows, cols = spec.shape
    return name if quant.get(name).accepts(rows, cols) else "bf16"


def _specs(config: ModelConfig) -> Iterator[TensorSpec]:
    hidden = config.hidden_size
    yield TensorSpec("model.embed_tokens.weight", (config.vocab_size, hidden), Role.EMBEDDING)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        if config.hyper_connections is None:
            yield TensorSpec(f"{prefix}.input_layernorm.weight", (hidden,), Role.VECTOR)
            yield TensorSpec(f"{prefix}.post_attention_layernorm.weight", (hidden,), Role.VECTOR)
        else:
            for block in ("attn", "mlp"):
                yield from _hyper_connection(config, f"{prefix}.{block}_hyper_connection", injects=True)
        if config.ngrams is not None and layer in config.ngrams.layers:
            yield from _ngrams(config, config.ngrams, layer, f"{prefix}.ple")
        if config.linear_layers[layer]:
            yield from _linear_attention(config, f"{prefix}.linear_attn")
        else:
            yield from _attention(config, f"{prefix}.self_attn")
        if config.expert_layers[layer]:
            yield from _experts(config, layer, f"{prefix}.mlp")
        else:
            yield from _mlp(hidden, config.intermediate_size, f"{prefix}.mlp", config.mlp_bias)
    if config.hyper_connections is None:
        yield TensorSpec("model.norm.weight", (hidden,), Role.VECTOR)
    else:
        yield from _hyper_connection(config, "model.hyper_connection_mixer", injects=False)
    if not config.tie_word_embeddings:
        yield TensorSpec("lm_head.weight", (config.vocab_size, hidden), Role.EMBEDDING)


def _attention(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    hidden = config.hidden_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield from _linear(f"{prefix}.q_proj", q_rows, hidden, config.qkv_bias)
    if config.gated_attention:
        yield from _linear(f"{prefix}.gate_proj", q_rows, hidden, config.qkv_bias)
    yield from _linear(f"{prefix}.k_proj", kv_rows, hidden, config.qkv_bias)
    yield from _linear(f"{prefix}.v_proj", kv_rows, hidden, config.qkv_bias)
    if config.qk_norm:
        yield TensorSpec(f"{prefix}.q_norm.weight", (config.head_dim,), Role.VECTOR)
        yield TensorSpec(f"{prefix}.k_norm.weight", (config.head_dim,), Role.VECTOR)
    if config.attention_sinks:
        yield TensorSpec(f"{prefix}.sinks", (config.num_heads,), Role.VECTOR)
    yield from _linear(f"{prefix}.o_proj", hidden, q_rows, config.o_bias)
    indexer = config.indexer
    if indexer is not None:
        rows = (indexer.num_heads + 1) * indexer.head_dim
        yield TensorSpec(f"{prefix}.indexer.index_qk_proj.weight", (rows, hidden), Role.ROUTER)
        yield TensorSpec(f"{prefix}.indexer.q_layernorm.weight", (indexer.head_dim,), Role.VECTOR)
        yield TensorSpec(f"{prefix}.indexer.k_layernorm.weight", (indexer.head_dim,), Role.VECTOR)


def _hyper_connection(config: ModelConfig, prefix: str, *, injects: bool) -> Iterator[TensorSpec]:
    """``injects``: what comes behind it goes into the streams again."""
    width, streams = config.stream_width, config.hyper_connections
    assert streams is not None, "several residual streams have their configuration"
    yield TensorSpec(f"{prefix}.hc_norm.weight", (width,), Role.VECTOR)
    yield TensorSpec(f"{prefix}.input_mix_weight_down.weight", (streams.rank, width), Role.MIXER)
    yield TensorSpec(f"{prefix}.input_mix_weight_up.weight", (width, streams.rank), Role.MIXER)
    if injects:
        yield TensorSpec(f"{prefix}.block_inject_weight.weight", (streams.num_streams, width), Role.MIXER)


def _ngrams(config: ModelConfig, ngrams: NGramConfig, layer: int, prefix: str) -> Iterator[TensorSpec]:
    width = config.stream_width
    table = (ngrams.num_rows(layer), ngrams.head_dim)
    yield TensorSpec(f"{prefix}.ple_embedding.ngram_embedding.weight", table, Role.NGRAMS)
    yield from _linear(f"{prefix}.key_proj", width, ngrams.embed_dim, bias=False)
    yield from _linear(f"{prefix}.value_proj", config.hidden_size, ngrams.embed_dim, bias=False)
    for norm in ("key", "query", "conv"):
        yield TensorSpec(f"{prefix}.norm_{norm}.weight", (width,), Role.VECTOR)
    yield TensorSpec(f"{prefix}.conv1d.weight", (width, 1, config.ngram_conv_kernel_size), Role.VECTOR)


def _linear_attention(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    hidden, linear = config.hidden_size, config.linear_attention
    assert linear is not None, "a layer of linear attention has its configuration"
    value_width = linear.num_value_heads * linear.value_head_dim
    yield from _linear(f"{prefix}.in_proj_qkv", linear.channels, hidden, bias=False)
    yield from _linear(f"{prefix}.in_proj_z", value_width, hidden, bias=False)
    for part in "ba":
        yield TensorSpec(f"{prefix}.in_proj_{part}.weight", (linear.num_value_heads, hidden), Role.DECAY)
    yield TensorSpec(f"{prefix}.conv1d.weight", (linear.channels, 1, linear.conv_kernel_size), Role.VECTOR)
    yield TensorSpec(f"{prefix}.A_log", (linear.num_value_heads,), Role.VECTOR)
    yield TensorSpec(f"{prefix}.dt_bias", (linear.num_value_heads,), Role.VECTOR)
    yield TensorSpec(f"{prefix}.norm.weight", (linear.value_head_dim,), Role.VECTOR)
    yield from _linear(f"{prefix}.out_proj", hidden, value_width, bias=False)


def _mlp(
    hidden: int, inner: int, prefix: str, bias: bool, expert: tuple[int, int] | None = None
) -> Iterator[TensorSpec]:
    yield from _linear(f"{prefix}.gate_proj", inner, hidden, bias, expert)
    yield from _linear(f"{prefix}.up_proj", inner, hidden, bias, expert)
    yield from _linear(f"{prefix}.down_proj", hidden, inner, bias, expert)


def _experts(config: ModelConfig, layer: int, prefix: str) -> Iterator[TensorSpec]:
    hidden, experts = config.hidden_size, config.experts
    assert experts is not None, "a layer of experts has its configuration"
    yield TensorSpec(f"{prefix}.gate.weight", (experts.num_experts, hidden), Role.ROUTER)
    if experts.router_bias:
        yield TensorSpec(f"{prefix}.gate.bias", (experts.num_experts,), Role.VECTOR)
    if experts.shared_intermediate_size:
        yield TensorSpec(f"{prefix}.shared_expert_gate.weight", (1, hidden), Role.ROUTER)
        yield from _mlp(hidden, experts.shared_intermediate_size, f"{prefix}.shared_expert", bias=False)
    for expert in range(experts.num_experts):
        name = expert_name(layer, expert)
        yield from _mlp(hidden, experts.intermediate_size, name, experts.bias, (layer, expert))


def _linear(name: str, rows: int, cols: int, bias: bool, expert: tuple[int, int] | None = None) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (rows, cols), Role.EXPERT if expert else Role.MATRIX, expert)
    if bias:
        yield TensorSpec(f"{name}.bias", (rows,), Role.VECTOR, expert)


_MTP, _VISION = r"mtp\..*", r"model\.visual\..*"  # layers that guess further tokens, and what reads images
# What the configuration says as well: how n-grams are hashed.
_HASHES = r"model\.layers\.\d+\.ple\.ple_embedding\.(layer_multipliers|ngram_heads_vocab_sizes|ngram_heads_offsets)"
_UNREAD = {
    "Qwen3NextForCausalLM": (_MTP,),
    "Qwen3_5MoeForCausalLM": (_MTP, _VISION),
    "Qwen3_5MoeForConditionalGeneration": (_MTP, _VISION),
    "Qwen4ExpForCausalLM": (_MTP, _VISION, _HASHES),
    "Qwen4ExpForConditionalGeneration": (_MTP, _VISION, _HASHES),
}


def _ignored(config: ModelConfig) -> re.Pattern[str]:
    # Old checkpoints carry RoPE's frequencies, which follow from the config. A tied head is the embedding once more.
    patterns = [r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"]
    if config.tie_word_embeddings:
        patterns.append(r"lm_head\.weight")
    patterns += _UNREAD.get(config.architecture, ())
    return re.compile("|".join(patterns))


def _listed(names: Iterable[str], limit: int = 8) -> str:
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
