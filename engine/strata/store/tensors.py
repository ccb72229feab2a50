"""Which tensors a model of each architecture needs: names, shapes and roles as a pure function of its configuration.

A new architecture adds one function and one entry of ``_ARCHITECTURES``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from strata import quant
from strata.config import ModelConfig
from strata.errors import CheckpointError, UnsupportedModelError


class Role(StrEnum):
    """What a tensor is for, which decides how many bits it keeps."""

    EMBEDDING = "embedding"  # token embedding or output head: never below 8 bits
    MATRIX = "matrix"  # weight of a linear layer
    VECTOR = "vector"  # norm or bias: kept as it is


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One needed tensor."""

    name: str
    shape: tuple[int, ...]
    role: Role


def needed(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """The tensors of the model in the order in which a forward pass reads them.

    Raises UnsupportedModelError with the supported list for an unknown architecture.
    """
    check_architecture(config.architecture, _ARCHITECTURES)
    return _ARCHITECTURES[config.architecture].needed(config)


def check_architecture(name: str, supported: Collection[str]) -> None:
    """Raise UnsupportedModelError with the ``supported`` ones unless ``name`` is one of them."""
    if name not in supported:
        raise UnsupportedModelError(
            f"architecture {name!r} is not supported; supported: {', '.join(sorted(supported))}"
        )


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
    ignored = _ARCHITECTURES[config.architecture].ignored(config)
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
    name = "int8" if spec.role is Role.EMBEDDING and dtype != "bf16" else dtype
    rows, cols = spec.shape
    return name if quant.get(name).accepts(rows, cols) else "bf16"


@dataclass(frozen=True, slots=True)
class _Architecture:
    needed: Callable[[ModelConfig], tuple[TensorSpec, ...]]
    ignored: Callable[[ModelConfig], re.Pattern[str]]


def _llama(config: ModelConfig) -> tuple[TensorSpec, ...]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (q_rows, hidden, config.attention_bias),
        "self_attn.k_proj": (kv_rows, hidden, config.attention_bias),
        "self_attn.v_proj": (kv_rows, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, q_rows, config.attention_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    specs = [TensorSpec("model.embed_tokens.weight", (config.vocab_size, hidden), Role.EMBEDDING)]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        specs.append(TensorSpec(f"{prefix}.input_layernorm.weight", (hidden,), Role.VECTOR))
        specs.append(TensorSpec(f"{prefix}.post_attention_layernorm.weight", (hidden,), Role.VECTOR))
        for name, (rows, cols, has_bias) in linears.items():
            specs.append(TensorSpec(f"{prefix}.{name}.weight", (rows, cols), Role.MATRIX))
            if has_bias:
                specs.append(TensorSpec(f"{prefix}.{name}.bias", (rows,), Role.VECTOR))
    specs.append(TensorSpec("model.norm.weight", (hidden,), Role.VECTOR))
    if not config.tie_word_embeddings:
        specs.append(TensorSpec("lm_head.weight", (config.vocab_size, hidden), Role.EMBEDDING))
    return tuple(specs)


def _llama_ignored(config: ModelConfig) -> re.Pattern[str]:
    # Old checkpoints carry RoPE's frequencies, which follow from the config. A tied head is the embedding once more.
    patterns = [r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"]
    if config.tie_word_embeddings:
        patterns.append(r"lm_head\.weight")
    return re.compile("|".join(patterns))


_ARCHITECTURES = {"LlamaForCausalLM": _Architecture(_llama, _llama_ignored)}


def _listed(names: Iterable[str], limit: int = 8) -> str:
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
