"""Llama 2 and 3, and every model that says it is one (SmolLM2, TinyLlama)."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.models.decoder import Decoder
from strata.models.layers import Attention, FeedForward, GatedMLP
from strata.models.weights import Weights


class Llama(Decoder):
    """Plain attention and one gated MLP a layer."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, layer: int) -> Attention:
        return Attention(config, weights, name)

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, layer: int) -> FeedForward:
        return GatedMLP(weights, name)
