"""The text of Qwen4's preview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import StepBatch
from strata.kernels.hyper_connections.reference import inject
from strata.kernels.indexed_attention.indexer import IndexedCache, Indexer
from strata.kernels.layer import HyperConnection, HyperConnectionFn, LayerCache, NormLinearFn, Rotation
from strata.kernels.matrix import Matrix, Norm
from strata.models.decoder import AttendFn, Decoder
from strata.models.layers import FeedForward, attention_heads, projections
from strata.models.moe import ExpertsBesideShared
from strata.models.ngrams import NGrams
from strata.models.weights import Weights


class Qwen4(Decoder):
    """Several residual streams; linear attention in most layers, indexed attention with gates in the others; experts
    beside a shared one; before a few layers embeddings of n-grams."""

    def __init__(self, config: ModelConfig, weights: Weights, max_positions: int) -> None:
        super().__init__(config, weights, max_positions)
        assert config.hyper_connections is not None, "several residual streams have their configuration"
        assert config.indexer is not None, "indexed attention has its configuration"
        self.num_streams = config.hyper_connections.num_streams
        self.group_size = config.indexer.group_size
        with_ngrams = config.ngrams.layers if config.ngrams else ()
        self.ngrams = {layer: NGrams(config, weights, f"model.layers.{layer}.ple", layer) for layer in with_ngrams}

    @staticmethod
    def attention(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> AttendFn:
        return IndexedAttention(config, weights, name, norm)

    @staticmethod
    def feed_forward(config: ModelConfig, weights: Weights, name: str, norm: Norm | None, layer: int) -> FeedForward:
        assert config.experts is not None, "every layer has experts"
        return ExpertsBesideShared(config.experts, weights, name, norm, layer)

    @classmethod
    def last(cls, config: ModelConfig, weights: Weights, head: Matrix) -> NormLinearFn:
        mix = _mix(config, weights, "model.hyper_connection_mixer", injects=False)
        product = weights.kernels.norm_linear(None, [head], wide=True)
        return lambda streams: product(mix(streams)[0])

    @classmethod
    def layer(cls, config: ModelConfig, weights: Weights, layer: int) -> StreamsLayer:
        name = f"model.layers.{layer}"
        before = _mix(config, weights, f"{name}.attn_hyper_connection", injects=True)
        between = _mix(config, weights, f"{name}.mlp_hyper_connection", injects=True)
        attention, feed_forward = cls.halves(config, weights, None, None, layer)
        return StreamsLayer(before, attention, between, feed_forward)

    def forward(self, token_ids: Tensor, batch: StepBatch, caches: Sequence[LayerCache]) -> Tensor:
        coming = {number: ngrams.begin(token_ids, caches[number], batch) for number, ngrams in self.ngrams.items()}
        rotation = self.rotation(batch.positions)
        streams = self.embed(token_ids).repeat(1, self.num_streams)
        for number, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            if number in coming:
                streams = self.ngrams[number](streams, coming.pop(number).wait(), cache, batch)
            streams = layer(streams, rotation, cache, batch)
        return streams

    def rotation(self, positions: Tensor) -> Rotation:
        starts = (positions - (self.group_size - 1)).clamp(min=0)
        return replace(super().rotation(positions), groups=super().rotation(starts))


@dataclass(frozen=True, slots=True)
class StreamsLayer:
    """Attention, then what follows it: each takes a mixture of the streams, and they their shares of what it gives."""

    before: HyperConnectionFn
    attention: AttendFn
    between: HyperConnectionFn
    feed_forward: FeedForward

    def __call__(self, streams: Tensor, rotation: Rotation, cache: LayerCache, batch: StepBatch) -> Tensor:
        x, shares = self.before(streams)
        streams = inject(streams, self.attention(x, rotation, cache, batch, torch.zeros_like(x)), shares)
        x, shares = self.between(streams)
        return inject(streams, self.feed_forward(x, torch.zeros_like(x)), shares)


class IndexedAttention:
    """onto + out(attention(qkv(norm(x)))), to the tokens that an indexer chooses: see ``kernels.indexed_attention``."""

    def __init__(self, config: ModelConfig, weights: Weights, name: str, norm: Norm | None) -> None:
        kernels, eps, indexer = weights.kernels, config.rms_norm_eps, config.indexer
        assert indexer is not None, "indexed attention has its configuration"
        heads = attention_heads(config, weights, name, qk_norm=True, gated=config.gated_attention)
        self.qkv = kernels.norm_linear(norm, projections(weights, name, gated=config.gated_attention))
        self.index_qk = kernels.norm_linear(norm, [weights.matrix(f"{name}.indexer.index_qk_proj")])
        norms = (weights.norm(f"{name}.indexer.{part}_layernorm", eps) for part in "qk")
        self.attend = kernels.indexed_attention(
            heads, Indexer(indexer.num_heads, indexer.head_dim, indexer.num_groups, indexer.group_size, *norms)
        )
        self.out_add = kernels.linear_add(weights.matrix(f"{name}.o_proj"))

    def __call__(self, x: Tensor, rotation: Rotation, cache: IndexedCache, batch: StepBatch, onto: Tensor) -> Tensor:
        """x and onto [tokens, hidden] -> the same; the tokens' keys and values are left in ``cache``."""
        return self.out_add(self.attend(self.qkv(x), self.index_qk(x), rotation, cache, batch), onto)


def _mix(config: ModelConfig, weights: Weights, name: str, *, injects: bool) -> HyperConnectionFn:
    streams = config.hyper_connections
    assert streams is not None, "several residual streams have their configuration"
    return weights.kernels.hyper_connection(
        HyperConnection(
            weights.stream_norm(f"{name}.hc_norm", config.rms_norm_eps, streams.num_streams),
            weights.matrix(f"{name}.input_mix_weight_down"),
            weights.matrix(f"{name}.input_mix_weight_up"),
            weights.matrix(f"{name}.block_inject_weight") if injects else None,
            streams.rank,
        )
    )
