"""Routed experts: a token takes the few that its router chooses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from strata.config import ExpertsConfig
from strata.models.layers import GatedMLP
from strata.models.weights import Weights


class RoutedExperts:
    """The sum of the chosen experts' outputs, each times the router's weight for it."""

    def __init__(
        self, config: ExpertsConfig, weights: Weights, name: str, activation: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.top_k, self.normalize = config.num_experts_per_tok, config.norm_topk_prob
        self.router = weights.linear(f"{name}.gate")
        self.experts = [GatedMLP(weights, f"{name}.experts.{i}", activation) for i in range(config.num_experts)]
        self.kernels = weights.kernels

    def __call__(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] -> [tokens, hidden]"""
        shares, ids = self.kernels.route(self.router(x), self.top_k, self.normalize)
        return self.kernels.run_experts(x, shares, ids, self.experts)


class ExpertsBesideShared:
    """Routed experts, plus one that every token takes as far as its gate opens: sigmoid(gate(x)) * shared(x)."""

    def __init__(self, config: ExpertsConfig, weights: Weights, name: str) -> None:
        self.routed = RoutedExperts(config, weights, name)
        self.shared = GatedMLP(weights, f"{name}.shared_expert")
        self.gate = weights.linear(f"{name}.shared_expert_gate")

    def __call__(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] -> [tokens, hidden]"""
        return torch.addcmul(self.routed(x), torch.sigmoid(self.gate(x)), self.shared(x))
