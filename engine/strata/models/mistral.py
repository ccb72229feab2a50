"""Mistral and Mixtral."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.kernels.matrix import Norm
from strata.models.layers import Attention
from strata.models.llama import Llama
from strata.models.weights import Weights


class Mistral(Llama):
    """A Llama that sees through a sliding window; a Mixtral has experts in every layer."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> Attention:
        return Attention(config, weights, name, norm, window=config.windows[layer])
