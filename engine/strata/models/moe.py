"""Routed experts: a token takes the few that its router chooses."""

from __future__ import annotations

import torch
from torch import Tensor

from strata.config import ExpertsConfig
from strata.kernels.matrix import SILU, Activation, Norm
from strata.models.layers import FeedForward
from strata.models.weights import Weights


def routed_experts(
    config: ExpertsConfig, weights: Weights, name: str, norm: Norm | None, layer: int, activation: Activation = SILU
) -> FeedForward:
    """onto + the sum of the chosen experts' outputs for norm(x), each times the router's share for it."""
    gate = weights.matrix(f"{name}.gate")
    router = weights.kernels.route(norm, gate, config.num_experts_per_tok, config.norm_topk_prob)
    return weights.tier.layer(layer, activation, router)


class ExpertsBesideShared:
    """Routed experts, plus one that every token takes as far as its gate opens: sigmoid(gate(.)) * shared(.). Where
    several ranks share the routed ones, the first adds this one too."""

    def __init__(self, config: ExpertsConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> None:
        kernels, shared = weights.kernels, f"{name}.shared_expert"
        self.routed = routed_experts(config, weights, name, norm, layer)
        self.adds_shared = weights.tier.rank.index == 0
        self.gate = kernels.norm_linear(norm, [weights.matrix(f"{name}.shared_expert_gate")])
        matrices = weights.matrices(f"{shared}.gate_proj", f"{shared}.up_proj")
        self.gated = kernels.norm_gated(norm, matrices, SILU)
        self.down_add = kernels.linear_add(weights.matrix(f"{shared}.down_proj"))

    def __call__(self, x: Tensor, onto: Tensor) -> Tensor:
        """x and onto [tokens, hidden] -> the same"""
        if not self.adds_shared:
            return self.routed(x, onto)
        share, inner = torch.sigmoid(self.gate(x)), self.gated(x)  # of x before the routed experts are added to it
        return self.down_add(inner, self.routed(x, onto), share)
