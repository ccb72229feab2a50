"""The steps of a layer on an NVIDIA GPU, activations in bf16.

The residual stream is float32. Between two steps go ``QuantizedRows`` where ``rows.wants_quantized(tokens)``, bf16
otherwise. A step's result is the same whenever it is called with the same inputs: nothing is added up in the order in
which threads happen to finish. Every step may be captured in a CUDA graph: what it launches and allocates depends on
the number of tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from strata.kernels.argmax.triton import argmax
from strata.kernels.attention import triton as paged_attention
from strata.kernels.delta_rule import triton as delta_rule
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.embedding import triton as embedding
from strata.kernels.embedding.reference import EmbeddingFn
from strata.kernels.experts import blobs
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.layer import (
    AttentionFn,
    DeltaNetFn,
    Expert,
    ExpertsFn,
    Heads,
    Inner,
    Kernels,
    LinearAddFn,
    NormGatedFn,
    NormLinearFn,
    Routed,
    Router,
)
from strata.kernels.linear.dense import Dense
from strata.kernels.matrix import Activation, Matrix, Norm
from strata.kernels.misses import routing as cpu_routing
from strata.kernels.misses import triton as misses
from strata.kernels.misses import untile
from strata.kernels.misses.table import MissSteps
from strata.kernels.own import triton as own_experts
from strata.kernels.prefetch import triton as prefetch
from strata.kernels.rms_norm import triton as rms_norm
from strata.kernels.router import triton as routing
from strata.kernels.rows import GROUP, QuantizedRows, dequantize_rows, quantize_rows, wants_quantized


class CudaKernels(Kernels):
    """What is not overridden is composed of plain operations, as everywhere."""

    reads_pages = True

    @property
    def misses(self) -> MissSteps:
        return MissSteps(
            quantize_rows,
            cpu_routing.ask_route,
            cpu_routing.take_choice,
            misses.share_out,
            misses.add_answer,
            untile.untile,
            prefetch.guess_routed,
            prefetch.guess_recent,
            prefetch.admit,
        )

    def embedding(self, table: Matrix) -> EmbeddingFn:
        return embedding.prepare(table)

    def norm_linear(self, norm: Norm | None, matrices: Sequence[Matrix], *, wide: bool = False) -> NormLinearFn:
        normed, dense = rms_norm.prepare(_given(norm)), Dense(matrices)
        dtype = torch.float32 if wide else self.dtype

        def product(x: Tensor) -> Tensor:
            if not len(x):  # no row's logits are needed
                return x.new_empty(0, dense.rows, dtype=dtype)
            return dense(normed(x, dense.rounded and wants_quantized(len(x))), dtype)

        return product

    def argmax(self, logits: Tensor) -> Tensor:
        return argmax(logits)

    def attention(self, heads: Heads) -> AttentionFn:
        return paged_attention.prepare(heads)

    def delta_net(self, net: DeltaNet) -> DeltaNetFn:
        return delta_rule.prepare(net)

    def linear_add(self, matrix: Matrix) -> LinearAddFn:
        dense = Dense([matrix])
        return lambda inner, x, share=None: dense.add_(inner, x, share)

    def norm_gated(self, norm: Norm | None, matrices: Sequence[Matrix], activation: Activation) -> NormGatedFn:
        normed, dense = rms_norm.prepare(_given(norm)), Dense(matrices)
        return lambda x: dense.gated(normed(x, wants_quantized(len(x))), activation)

    def route(self, norm: Norm | None, router: Matrix, top_k: int, normalize: bool) -> Router:
        norm = _given(norm)
        if norm.weight.shape[-1] % GROUP:
            return super().route(norm, router, top_k, normalize)
        return routing.prepare(norm, router, top_k, normalize)

    def experts(self, experts: Iterable[Expert], activation: Activation) -> ExpertsFn:
        activate = self._activation(activation)
        mlps = [self._mlp(expert, activate) for expert in experts]
        run = self.operations.run_experts

        def add(routed: Routed, x: Tensor) -> Tensor:
            return x + run(self._plain(routed.inner), routed.shares.to(self.dtype), routed.ids, mlps)

        return add

    def own(self, ids: Tensor, index: int, count: int, nobody: int) -> Tensor:
        return own_experts.own(ids, index, count, nobody)

    def reads_blobs(self, layout: BlobLayout) -> bool:
        return blobs.reads(layout)

    def blob_experts(self, layout: BlobLayout, addresses: Tensor, activation: Activation) -> ExpertsFn:
        return blobs.prepare(layout, addresses, activation)

    # --- inside

    def _norm(self, norm: Norm | None) -> Callable[[Tensor], Tensor]:
        normed = super()._norm(norm)
        return lambda x: normed(x).to(self.dtype)

    def _plain(self, inner: Inner) -> Tensor:
        return dequantize_rows(inner).to(self.dtype) if isinstance(inner, QuantizedRows) else inner


def _given(norm: Norm | None) -> Norm:
    assert norm is not None, "models whose blocks have no norms of their own are refused before they are loaded"
    return norm
