"""Parts that decoder-only transformers share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import StepBatch
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.layer import Heads, Rotation
from strata.kernels.matrix import SILU, Activation, Matrix, Norm
from strata.models.weights import Weights

# (x, onto), both [tokens, hidden] -> onto + what it makes of x; with one residual stream it is both of them
FeedForward = Callable[[Tensor, Tensor], Tensor]


class Attention:
    """onto + out(attention(qkv(norm(x)))): grouped-query attention with rotary positions over a paged KV cache; biases
    wherever the checkpoint has them."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        name: str,
        norm: Norm | None,
        *,
        window: int | None = None,
        qk_norm: bool = False,
        sinks: bool = False,
        gated: bool = False,
    ) -> None:
        """``window``: positions that a token sees, its own included; None: all. ``qk_norm``: each head of q and k is
        normalised before it is turned. ``sinks``: see ``kernels.attention``. ``gated``: see ``Heads``."""
        kernels = weights.kernels
        self.qkv = kernels.norm_linear(norm, projections(weights, name, gated=gated))
        heads = attention_heads(config, weights, name, window=window, qk_norm=qk_norm, sinks=sinks, gated=gated)
        self.attend = kernels.attention(heads)
        self.out_add = kernels.linear_add(weights.matrix(f"{name}.o_proj"))

    def __call__(self, x: Tensor, rotation: Rotation, cache: Tensor, batch: StepBatch, onto: Tensor) -> Tensor:
        """x and onto [tokens, hidden] -> the same; the tokens' keys and values are left in ``cache``."""
        return self.out_add(self.attend(self.qkv(x), rotation, cache, batch), onto)


def projections(weights: Weights, name: str, *, gated: bool) -> tuple[Matrix, ...]:
    """Of queries, keys and values, and of the gates if there are any."""
    return weights.matrices(*(f"{name}.{part}_proj" for part in ("q", "k", "v", *(["gate"] if gated else []))))


def attention_heads(
    config: ModelConfig,
    weights: Weights,
    name: str,
    *,
    window: int | None = None,
    qk_norm: bool = False,
    sinks: bool = False,
    gated: bool = False,
) -> Heads:
    """Arguments as of ``Attention``."""
    eps = config.rms_norm_eps
    return Heads(
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        window,
        weights.norm(f"{name}.q_norm", eps) if qk_norm else None,
        weights.norm(f"{name}.k_norm", eps) if qk_norm else None,
        weights.vector(f"{name}.sinks") if sinks else None,
        gated,
    )


class LinearAttention:
    """onto + out(delta_net(qkvz(norm(x)), ba(norm(x)))): see ``kernels.delta_rule``."""

    def __init__(self, config: ModelConfig, weights: Weights, name: str, norm: Norm | None) -> None:
        kernels, linear = weights.kernels, config.linear_attention
        assert linear is not None, "a layer of linear attention has its configuration"
        self.projected = kernels.norm_linear(norm, weights.matrices(f"{name}.in_proj_qkv", f"{name}.in_proj_z"))
        gates = weights.matrices(f"{name}.in_proj_b", f"{name}.in_proj_a")
        self.gates = kernels.norm_linear(norm, gates, wide=True)
        self.read = kernels.delta_net(
            DeltaNet(
                linear.num_key_heads,
                linear.num_value_heads,
                linear.key_head_dim,
                linear.value_head_dim,
                conv=weights.vector(f"{name}.conv1d.weight").squeeze(1),
                decay=weights.vector(f"{name}.A_log"),
                dt_bias=weights.vector(f"{name}.dt_bias"),
                norm=Norm(weights.vector(f"{name}.norm.weight"), config.rms_norm_eps),
                sigmoid_gate=linear.sigmoid_gate,
            )
        )
        self.out_add = kernels.linear_add(weights.matrix(f"{name}.out_proj"))

    def __call__(self, x: Tensor, _: Rotation, states: DeltaState, batch: StepBatch, onto: Tensor) -> Tensor:
        """x and onto [tokens, hidden] -> the same; the states behind the tokens are left in ``states``."""
        return self.out_add(self.read(self.projected(x), self.gates(x), states, batch), onto)


class GatedMLP:
    """onto + down(activation(gate(norm(x)), up(norm(x))))."""

    def __init__(self, weights: Weights, name: str, norm: Norm | None, activation: Activation = SILU) -> None:
        matrices = weights.matrices(f"{name}.gate_proj", f"{name}.up_proj")
        self.gated = weights.kernels.norm_gated(norm, matrices, activation)
        self.down_add = weights.kernels.linear_add(weights.matrix(f"{name}.down_proj"))

    def __call__(self, x: Tensor, onto: Tensor) -> Tensor:
        """x and onto [tokens, hidden] -> the same"""
        return self.down_add(self.gated(x), onto)
