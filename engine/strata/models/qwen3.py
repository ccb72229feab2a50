"""Qwen3, dense and as a mixture of experts."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.kernels.matrix import Norm
from strata.models.layers import Attention
from strata.models.llama import Llama
from strata.models.weights import Weights


class Qwen3(Llama):
    """A norm of each query and key head; a sliding window in some layers, in the published checkpoints in none. A
    mixture has experts in all layers or in some."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> Attention:
        return Attention(config, weights, name, norm, window=config.windows[layer], qk_norm=True)
