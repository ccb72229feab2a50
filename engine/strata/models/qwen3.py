"""Qwen3, dense and as a mixture of experts."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.models.layers import Attention, FeedForward, GatedMLP
from strata.models.llama import Llama
from strata.models.moe import RoutedExperts
from strata.models.weights import Weights


class Qwen3(Llama):
    """A norm of each query and key head; a sliding window in some layers, in the published checkpoints in none."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, layer: int) -> Attention:
        return Attention(config, weights, name, window=config.windows[layer], qk_norm=True)


class Qwen3Moe(Qwen3):
    """A Qwen3 with experts in all layers or in some."""

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, layer: int) -> FeedForward:
        if not config.expert_layers[layer]:
            return GatedMLP(weights, name)
        assert config.experts is not None, "a layer of experts has its configuration"
        return RoutedExperts(config.experts, weights, name)
