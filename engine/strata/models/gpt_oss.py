"""gpt-oss."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.models.decoder import Decoder
from strata.models.layers import Attention, FeedForward
from strata.models.moe import RoutedExperts
from strata.models.weights import Weights


class GptOss(Decoder):
    """Attention with sinks, through a sliding window in every second layer; experts with an activation of their own."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, layer: int) -> Attention:
        return Attention(config, weights, name, window=config.windows[layer], sinks=True)

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, layer: int) -> FeedForward:
        assert config.experts is not None, "gpt-oss has experts"
        limit, clamped_swiglu = config.swiglu_limit, weights.kernels.clamped_swiglu
        assert limit is not None, "gpt-oss' activation has a limit"
        return RoutedExperts(config.experts, weights, name, lambda gate_up: clamped_swiglu(gate_up, limit))
