"""Parts that decoder-only transformers share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import AttentionBatch
from strata.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and signed sin of the step's positions, [tokens, 1, head_dim] each: one gather for all layers."""

    cos: Tensor
    sin: Tensor


class Attention:
    """Grouped-query attention with rotary positions over a paged KV cache."""

    def __init__(self, weights: Weights, name: str, config: ModelConfig) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        # Stacked: q, k, v side by side are also what rope (q and k) and the cache (k and v) take in one call each.
        self.qkv = weights.linear(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.out = weights.linear(f"{name}.o_proj")
        self.kernels = weights.kernels

    def __call__(self, x: Tensor, rotation: Rotation, cache: Tensor, batch: AttentionBatch) -> Tensor:
        """x [tokens, hidden] -> [tokens, hidden]; the tokens' keys and values are left in ``cache``."""
        tokens, heads, kv_heads = x.shape[0], self.num_heads, self.num_kv_heads
        qkv = self.qkv(x).view(tokens, heads + 2 * kv_heads, self.head_dim)
        self.kernels.rope_(qkv[:, : heads + kv_heads], rotation.cos, rotation.sin)
        self.kernels.write_kv(qkv[:, heads:].view(tokens, 2, kv_heads, self.head_dim), cache, batch.slots)
        attended = self.kernels.paged_attention(qkv[:, :heads], cache, batch)
        return self.out(attended.view(tokens, -1))


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, weights: Weights, name: str) -> None:
        self.gate_up = weights.linear(f"{name}.gate_proj", f"{name}.up_proj")
        self.down = weights.linear(f"{name}.down_proj")
        self._silu_mul = weights.kernels.silu_mul

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._silu_mul(self.gate_up(x)))
