"""Qwen2 and 2.5, and the first Qwen mixtures of experts."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.models.layers import FeedForward, GatedMLP
from strata.models.mistral import Mistral
from strata.models.moe import ExpertsBesideShared
from strata.models.weights import Weights


class Qwen2(Mistral):
    """Biases for q, k and v; a sliding window in some layers, in most checkpoints in none."""


class Qwen2Moe(Qwen2):
    """A Qwen2 with experts beside a shared one, in all layers or in some."""

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, layer: int) -> FeedForward:
        if not config.expert_layers[layer]:
            return GatedMLP(weights, name)
        assert config.experts is not None, "a layer of experts has its configuration"
        return ExpertsBesideShared(config.experts, weights, name)
