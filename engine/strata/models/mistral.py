"""Mistral and Mixtral."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.models.layers import Attention, FeedForward
from strata.models.llama import Llama
from strata.models.moe import RoutedExperts
from strata.models.weights import Weights


class Mistral(Llama):
    """A Llama that sees through a sliding window."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, layer: int) -> Attention:
        return Attention(config, weights, name, window=config.windows[layer])


class Mixtral(Mistral):
    """A Mistral with experts in every layer."""

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, layer: int) -> FeedForward:
        assert config.experts is not None, "a Mixtral has experts"
        return RoutedExperts(config.experts, weights, name)
