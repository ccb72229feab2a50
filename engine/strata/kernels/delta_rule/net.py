"""The weights and the shape of one layer of linear attention, projections aside."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from strata.kernels.matrix import Norm


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Value head h reads with key head h // (value heads / key heads).

    conv: [channels, kernel], channels being queries, keys and values. decay, dt_bias: [value_heads]; a token's log
    decay is -exp(decay) * softplus(a + dt_bias). norm: of each head of the output, weight [value_dim]. sigmoid_gate:
    what opens the output's gate, else silu.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv: Tensor
    decay: Tensor
    dt_bias: Tensor
    norm: Norm
    sigmoid_gate: bool = False

    @property
    def key_width(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class PreparedNet:
    """A layer as a GPU's kernels read it, its weights in float32. taps: [kernel, channels], of ``net.conv`` what weighs
    the newest token first."""

    net: DeltaNet
    taps: Tensor

    @classmethod
    def of(cls, net: DeltaNet) -> PreparedNet:
        norm = replace(net.norm, weight=net.norm.weight.float().contiguous())
        decay, dt_bias = net.decay.float().contiguous(), net.dt_bias.float().contiguous()
        taps = net.conv.float().flip(1).T.contiguous()
        return cls(replace(net, decay=decay, dt_bias=dt_bias, norm=norm), taps)
