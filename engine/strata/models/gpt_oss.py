"""gpt-oss."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.kernels.matrix import Activation, Norm
from strata.models.decoder import Decoder
from strata.models.layers import Attention, FeedForward
from strata.models.moe import routed_experts
from strata.models.weights import Weights


class GptOss(Decoder):
    """Attention with sinks, through a sliding window in every second layer; experts with an activation of their own."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> Attention:
        return Attention(config, weights, name, norm, window=config.windows[layer], sinks=True)

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> FeedForward:
        assert config.experts is not None, "gpt-oss has experts"
        assert config.swiglu_limit is not None, "gpt-oss' activation has a limit"
        return routed_experts(config.experts, weights, name, norm, layer, Activation(config.swiglu_limit))
