"""Qwen3-Next, and what of Qwen3.5's mixtures reads text."""

from __future__ import annotations

from strata.config import ModelConfig
from strata.kernels.matrix import Norm
from strata.models.layers import Attention
from strata.models.llama import Llama
from strata.models.weights import Weights


class Qwen3Next(Llama):
    """Linear attention in most layers; in the others attention with gates, a norm of each query and key head, and RoPE
    over a part of it. Experts beside a shared one."""

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> Attention:
        return Attention(config, weights, name, norm, qk_norm=True, gated=config.gated_attention)
