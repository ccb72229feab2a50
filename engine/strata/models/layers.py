"""Parts that decoder-only transformers share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import StepBatch
from strata.kernels.layer import Heads, Rotation
from strata.kernels.matrix import SILU, Activation, Norm
from strata.models.weights import Weights

FeedForward = Callable[[Tensor], Tensor]  # the residual stream [tokens, hidden] -> the same, added to


class Attention:
    """x + out(attention(qkv(norm(x)))): grouped-query attention with rotary positions over a paged KV cache; biases
    wherever the checkpoint has them."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        name: str,
        norm: Norm,
        *,
        window: int | None = None,
        qk_norm: bool = False,
        sinks: bool = False,
    ) -> None:
        """``window``: positions that a token sees, its own included; None: all. ``qk_norm``: each head of q and k is
        normalised before it is turned. ``sinks``: see ``kernels.attention``."""
        kernels, eps = weights.kernels, config.rms_norm_eps
        self.qkv = kernels.norm_linear(norm, weights.matrices(*(f"{name}.{part}_proj" for part in "qkv")))
        self.attend = kernels.attention(
            Heads(
                config.num_heads,
                config.num_kv_heads,
                config.head_dim,
                window,
                weights.norm(f"{name}.q_norm", eps) if qk_norm else None,
                weights.norm(f"{name}.k_norm", eps) if qk_norm else None,
                weights.vector(f"{name}.sinks") if sinks else None,
            )
        )
        self.out_add = kernels.linear_add(weights.matrix(f"{name}.o_proj"))

    def __call__(self, x: Tensor, rotation: Rotation, cache: Tensor, batch: StepBatch) -> Tensor:
        """x [tokens, hidden] -> the same; the tokens' keys and values are left in ``cache``."""
        return self.out_add(self.attend(self.qkv(x), rotation, cache, batch), x)


class GatedMLP:
    """x + down(activation(gate(norm(x)), up(norm(x))))."""

    def __init__(self, weights: Weights, name: str, norm: Norm, activation: Activation = SILU) -> None:
        matrices = weights.matrices(f"{name}.gate_proj", f"{name}.up_proj")
        self.gated = weights.kernels.norm_gated(norm, matrices, activation)
        self.down_add = weights.kernels.linear_add(weights.matrix(f"{name}.down_proj"))

    def __call__(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] -> the same"""
        return self.down_add(self.gated(x), x)
