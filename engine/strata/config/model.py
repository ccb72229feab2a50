"""What a checkpoint's ``config.json`` says about the model, in one frozen dataclass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: ``theta`` is the base, ``scaling`` the checkpoint's own table (None: default)."""

    theta: float = 10_000.0
    scaling: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        """Name of the scaling, "default" when there is none."""
        table = self.scaling or {}
        return str(table.get("rope_type", table.get("type", "default")))


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer, in the field's own terms (Hugging Face ``config.json`` names)."""

    architecture: str  # first entry of "architectures", e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_hf(cls, table: Mapping[str, Any], *, origin: str) -> ModelConfig:
        """Read a Hugging Face ``config.json``; ``origin`` names the file in errors.

        Raises CheckpointError naming the key that is missing or of the wrong type.
        """

        def need(key: str, default: int | None = None) -> int:
            value = default if table.get(key) is None else table[key]
            if type(value) is not int or value <= 0:
                raise CheckpointError(f"{origin}: {key!r} is {value!r}; a positive integer is needed")
            return value

        def number(key: str, value: Any) -> float:
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise CheckpointError(f"{origin}: {key!r} is {value!r}; a positive number is needed")
            return float(value)

        architectures = table.get("architectures")
        if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
            raise CheckpointError(
                f"{origin}: 'architectures' is {architectures!r}; a list with the class name is needed"
            )
        num_heads = need("num_attention_heads")
        hidden_size = need("hidden_size")
        num_kv_heads = need("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(f"{origin}: {num_heads} attention heads do not divide into {num_kv_heads} KV heads")
        # Newer configs keep all of RoPE in one table, "rope_parameters"; older ones have theta beside "rope_scaling".
        rope = table.get("rope_parameters") or table.get("rope_scaling") or None
        if rope is not None and not isinstance(rope, dict):
            raise CheckpointError(f"{origin}: RoPE's scaling is {rope!r}; a table is needed")
        theta = number("rope_theta", (rope or {}).get("rope_theta", table.get("rope_theta", 10_000.0)))
        return cls(
            architecture=architectures[0],
            vocab_size=need("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=need("intermediate_size"),
            num_layers=need("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=need("head_dim", hidden_size // num_heads),
            rms_norm_eps=number("rms_norm_eps", table.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=need("max_position_embeddings"),
            rope=RopeConfig(theta=theta, scaling=rope),
            tie_word_embeddings=bool(table.get("tie_word_embeddings", False)),
            attention_bias=bool(table.get("attention_bias", False)),
            mlp_bias=bool(table.get("mlp_bias", False)),
            eos_token_ids=token_ids(table, "eos_token_id", origin=origin),
        )


def token_ids(table: Mapping[str, Any], key: str, *, origin: str) -> tuple[int, ...]:
    """A token id, or a list of them, or none; raises CheckpointError naming the key of ``origin`` for anything else."""
    value = table.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and item >= 0 for item in values):
        raise CheckpointError(f"{origin}: {key!r} is {value!r}; a token id or a list of them is needed")
    return tuple(values)
