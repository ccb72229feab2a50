"""Llama 2 and 3, and every model that says it is one (SmolLM2, TinyLlama)."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.kernels.matrix import Norm
from strata.models.decoder import Decoder
from strata.models.layers import Attention, FeedForward, GatedMLP
from strata.models.moe import ExpertsBesideShared, routed_experts
from strata.models.weights import Weights


class Llama(Decoder):
    """Plain attention and one gated MLP a layer, or the experts that its family has in the place of one."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> Attention:
        return Attention(config, weights, name, norm)

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> FeedForward:
        if not config.expert_layers[layer]:
            return GatedMLP(weights, name, norm)
        assert config.experts is not None, "a layer of experts has its configuration"
        kind = ExpertsBesideShared if config.experts.shared_intermediate_size else routed_experts
        return kind(config.experts, weights, name, norm, layer)
