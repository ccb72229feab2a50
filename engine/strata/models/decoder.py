"""The frame of every decoder-only transformer here: embedding, layers of attention and feed-forward, norm, head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import AttentionBatch
from strata.kernels.rms_norm.reference import NormFn
from strata.kernels.rope.reference import rope_table
from strata.models.layers import Attention, FeedForward, Rotation
from strata.models.rope import inverse_frequencies
from strata.models.weights import Weights


class Decoder(ABC):
    """Token ids to logits; keys and values live in the caches that the caller owns.

    An architecture says what its layers' two halves are, the rest is here.
    """

    def __init__(self, config: ModelConfig, weights: Weights, max_positions: int) -> None:
        """``max_positions``: positions that any sequence may reach, the length of the rotary tables."""
        tied = config.tie_word_embeddings
        self.windows = frozenset(config.windows)
        self.embed = weights.embedding("model.embed_tokens", keep=tied)
        self.layers = [self._layer(config, weights, layer) for layer in range(config.num_layers)]
        self.norm = weights.rms_norm("model.norm", config.rms_norm_eps)
        self.head = weights.linear("model.embed_tokens" if tied else "lm_head")
        inv_freq, scale = inverse_frequencies(config.rope, config.head_dim, max_positions)
        self.cos, self.sin = (t.to(weights.device) for t in rope_table(inv_freq, max_positions, scale, weights.dtype))

    @staticmethod
    @abstractmethod
    def attention(config: ModelConfig, weights: Weights, name: str, layer: int) -> Attention:
        """Attention of layer number ``layer``, whose tensors' names begin with ``name``."""

    @staticmethod
    @abstractmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, layer: int) -> FeedForward:
        """What follows attention in layer number ``layer``; its tensors' names begin with ``name``."""

    def _layer(self, config: ModelConfig, weights: Weights, layer: int) -> DecoderLayer:
        name = f"model.layers.{layer}"
        return DecoderLayer(
            weights.rms_norm(f"{name}.input_layernorm", config.rms_norm_eps),
            self.attention(config, weights, f"{name}.self_attn", layer),
            weights.rms_norm(f"{name}.post_attention_layernorm", config.rms_norm_eps),
            self.feed_forward(config, weights, f"{name}.mlp", layer),
        )

    def forward(self, token_ids: Tensor, batch: AttentionBatch, caches: Sequence[Tensor]) -> Tensor:
        """token_ids int64 [tokens] of one step, one KV cache a layer -> the last layer's output [tokens, hidden]."""
        rotation = Rotation(self.cos.index_select(0, batch.positions), self.sin.index_select(0, batch.positions))
        x = self.embed(token_ids)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rotation, cache, batch)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of ``forward``'s output [rows, hidden] -> float32 [rows, vocab].

        The product rounds to the activations' type, bf16: logits near 25 lie 0.125 apart, so the likeliest two may tie.
        """
        # On a CPU a product in float32 costs too much. SmolLM2's head, one row, 2 busy Zen 4 cores, 2026-11-29: int8
        # 102 ms (torch's weight-only product has no fast loop for it) against 4.1 of a step's 24; bf16 10.0 against 3.6
        # of 38.
        return self.head(self.norm(hidden)).float()


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    attention_norm: NormFn
    attention: Attention
    feed_forward_norm: NormFn
    feed_forward: FeedForward

    def __call__(self, x: Tensor, rotation: Rotation, cache: Tensor, batch: AttentionBatch) -> Tensor:
        x = self.attention(self.attention_norm(x), rotation, cache, batch).add_(x)
        return self.feed_forward(self.feed_forward_norm(x)).add_(x)
