"""The frame of every decoder-only transformer here: embedding, layers of attention and feed-forward, norm, head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import StepBatch
from strata.kernels.layer import LayerCache, NormLinearFn, Rotation
from strata.kernels.matrix import Matrix, Norm
from strata.kernels.rope.reference import rope_table
from strata.models.layers import FeedForward, LinearAttention
from strata.models.rope import inverse_frequencies
from strata.models.weights import Weights

# (x, ..., the cache of the layer's kind, ..., onto), as ``Attention``
AttendFn = Callable[[Tensor, Rotation, Any, StepBatch, Tensor], Tensor]
Layer = Callable[[Tensor, Rotation, LayerCache, StepBatch], Tensor]  # the residual stream -> the same


class Decoder(ABC):
    """Token ids to logits; keys and values, or states, live in the caches that the caller owns.

    An architecture says what its layers' two halves are, the rest is here.
    """

    def __init__(self, config: ModelConfig, weights: Weights, max_positions: int) -> None:
        """``max_positions``: positions that any sequence may reach, the length of the rotary tables."""
        tied = config.tie_word_embeddings
        self.windows = frozenset(config.windows)
        self.reads_pages = weights.kernels.reads_pages
        self.likeliest = weights.kernels.argmax
        self.tier = weights.tier if any(config.expert_layers) else None  # owns memory that layers read by address
        # Kernels that gather pages take other shapes at every step.
        self.can_capture = self.reads_pages and (self.tier is None or self.tier.max_captured != 0)
        self.embed = weights.embedding("model.embed_tokens", keep=tied)
        self.layers = [self.layer(config, weights, layer) for layer in range(config.num_layers)]
        head = weights.matrix("model.embed_tokens" if tied else "lm_head")
        self.head = self.last(config, weights, head)
        inv_freq, scale = inverse_frequencies(config.rope, config.rotary_dim, max_positions)
        self.cos, self.sin = (
            t.to(weights.device) for t in rope_table(inv_freq, max_positions, scale, weights.kernels.dtype)
        )

    @staticmethod
    @abstractmethod
    def attention(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> AttendFn:
        """Attention of layer number ``layer`` behind ``norm``; its tensors' names begin with ``name``."""

    @staticmethod
    @abstractmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> FeedForward:
        """What follows attention in layer number ``layer``, behind ``norm``; its tensors' names begin with ``name``."""

    @classmethod
    def last(cls, config: ModelConfig, weights: Weights, head: Matrix) -> NormLinearFn:
        """The step from the last layer's output to logits."""
        return weights.kernels.norm_linear(weights.norm("model.norm", config.rms_norm_eps), [head], wide=True)

    @classmethod
    def layer(cls, config: ModelConfig, weights: Weights, layer: int) -> Layer:
        """Layer number ``layer``."""
        name, eps = f"model.layers.{layer}", config.rms_norm_eps
        before, between = (weights.norm(f"{name}.{norm}_layernorm", eps) for norm in ("input", "post_attention"))
        return DecoderLayer(*cls.halves(config, weights, before, between, layer))

    @classmethod
    def halves(
        cls, config: ModelConfig, weights: Weights, before: Norm | None, between: Norm | None, layer: int
    ) -> tuple[AttendFn, FeedForward]:
        """Attention and what follows it, each behind its norm."""
        name = f"model.layers.{layer}"
        if config.linear_layers[layer]:
            attention: AttendFn = LinearAttention(config, weights, f"{name}.linear_attn", before)
        else:
            attention = cls.attention(config, weights, f"{name}.self_attn", before, layer)
        return attention, cls.feed_forward(config, weights, f"{name}.mlp", between, layer)

    def forward(self, token_ids: Tensor, batch: StepBatch, caches: Sequence[LayerCache]) -> Tensor:
        """token_ids int64 [tokens] of one step, one cache a layer -> the last layer's output [tokens, width of
        all residual streams]."""
        rotation = self.rotation(batch.positions)
        x = self.embed(token_ids)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rotation, cache, batch)
        return x

    def rotation(self, positions: Tensor) -> Rotation:
        """Of the positions, int64 [tokens]."""
        return Rotation(self.cos.index_select(0, positions), self.sin.index_select(0, positions))

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of ``forward``'s output [rows, hidden] -> float32 [rows, vocab].

        On a CPU the product rounds to bf16: logits near 25 lie 0.125 apart, so the likeliest two may tie.
        """
        # There a product in float32 costs too much. SmolLM2's head, one row, 2 busy Zen 4 cores, 2026-11-29: int8
        # 102 ms (torch's weight-only product has no fast loop for it) against 4.1 of a step's 24; bf16 10.0 against 3.6
        # of 38.
        return self.head(hidden).float()


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention, then what follows it; each adds to the residual stream."""

    attention: AttendFn
    feed_forward: FeedForward

    def __call__(self, x: Tensor, rotation: Rotation, cache: LayerCache, batch: StepBatch) -> Tensor:
        x = self.attention(x, rotation, cache, batch, x)
        return self.feed_forward(x, x)
