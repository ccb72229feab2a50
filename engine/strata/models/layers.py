"""Parts that decoder-only transformers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import AttentionBatch
from strata.models.weights import Weights

FeedForward = Callable[[Tensor], Tensor]  # [tokens, hidden] -> [tokens, hidden]


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and signed sin of the step's positions, [tokens, 1, head_dim] each: one gather for all layers."""

    cos: Tensor
    sin: Tensor


class Attention:
    """Grouped-query attention with rotary positions over a paged KV cache; biases wherever the checkpoint has them."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        name: str,
        *,
        window: int | None = None,
        qk_norm: bool = False,
        sinks: bool = False,
    ) -> None:
        """``window``: positions that a token sees, its own included; None: all. ``qk_norm``: each head of q and k is
        normalised before it is turned. ``sinks``: see ``kernels.attention``."""
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        # Stacked: q, k, v side by side are also what norm and rope (q and k) and the cache (k and v) take in one call
        # each.
        self.qkv = weights.linear(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        heads = {f"{name}.q_norm": self.num_heads, f"{name}.k_norm": self.num_kv_heads}
        self.qk_norm = weights.head_norm(heads, config.rms_norm_eps) if qk_norm else None
        self.sinks = weights.vector(f"{name}.sinks").to(weights.dtype) if sinks else None
        self.window = window
        self.out = weights.linear(f"{name}.o_proj")
        self.kernels = weights.kernels

    def __call__(self, x: Tensor, rotation: Rotation, cache: Tensor, batch: AttentionBatch) -> Tensor:
        """x [tokens, hidden] -> [tokens, hidden]; the tokens' keys and values are left in ``cache``."""
        tokens, heads, kv_heads = x.shape[0], self.num_heads, self.num_kv_heads
        qkv = self.qkv(x).view(tokens, heads + 2 * kv_heads, self.head_dim)
        queries_keys = qkv[:, : heads + kv_heads]
        if self.qk_norm is not None:
            queries_keys.copy_(self.qk_norm(queries_keys))
        self.kernels.rope_(queries_keys, rotation.cos, rotation.sin)
        self.kernels.write_kv(qkv[:, heads:].view(tokens, 2, kv_heads, self.head_dim), cache, batch.slots)
        attended = self.kernels.paged_attention(qkv[:, :heads], cache, batch, self.window, self.sinks)
        return self.out(attended.flatten(1))


class GatedMLP:
    """down(activation(gate(x), up(x))); the activation takes both side by side, and is silu(gate) * up unless given."""

    def __init__(self, weights: Weights, name: str, activation: Callable[[Tensor], Tensor] | None = None) -> None:
        self.gate_up = weights.linear(f"{name}.gate_proj", f"{name}.up_proj")
        self.down = weights.linear(f"{name}.down_proj")
        self.activation = activation or weights.kernels.silu_mul

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate_up(x)))
