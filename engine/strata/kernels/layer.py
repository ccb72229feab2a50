"""The steps of a decoder layer: what models are written in, and what a device may fuse.

A step is prepared once of its weights and then called with activations. Here each is composed of plain operations; a
device that fuses them overrides the step and keeps its contract. Two kinds of value pass between steps:

- the residual stream, [tokens, hidden]: ``embedding`` makes it, ``linear_add`` and ``experts`` add to it. A step may
  write into the one that it is given, so use only the one that it returns.
- what only the next step reads: the result of ``attention`` and ``norm_gated`` goes to ``linear_add``, that of
  ``route`` to ``experts``. Here these are tensors, elsewhere whatever a device likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from strata.kernels.argmax.reference import argmax
from strata.kernels.attention.batch import AttentionBatch, StepBatch
from strata.kernels.delta_rule import reference as delta_rule_reference
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.embedding.reference import EmbeddingFn
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.hyper_connections import reference as hyper_connections
from strata.kernels.indexed_attention import reference as indexed
from strata.kernels.indexed_attention.indexer import IndexedCache, Indexer
from strata.kernels.linear.reference import LinearFn
from strata.kernels.matrix import Activation, Matrix, Norm
from strata.kernels.misses.table import MissSteps
from strata.kernels.ngram_gate import reference as ngram_gate
from strata.kernels.ngram_gate.layer import NGramLayer, NGramState
from strata.kernels.operations import Operations
from strata.kernels.own.reference import own

Inner: TypeAlias = Any  # what only the next step reads
# Keys and values of a layer with attention, with its indexer's keys if it has one, or the states of a linear one.
LayerCache: TypeAlias = "Tensor | IndexedCache | DeltaState"


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and signed sin of the step's positions, [tokens, 1, rotary_dim] each, of the dimensions of a head that are
    turned, which are its first: one gather for all layers. groups: of the first position of the group that ends at each
    of the step's; None where no layer has an indexer."""

    cos: Tensor
    sin: Tensor
    groups: Rotation | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer. ``window``: positions that a token sees, its own included; None: all. The norms are of
    each head of q and k by itself, weight [head_dim]. ``sinks`` [heads]: see ``kernels.attention``. ``gated``: behind v
    come as many gates as there are queries, and sigmoid(gate) scales what is attended to."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    sinks: Tensor | None = None
    gated: bool = False

    @property
    def num_projected(self) -> int:
        """Heads of the product that attention takes: queries, keys, values and gates."""
        return (2 if self.gated else 1) * self.num_heads + 2 * self.num_kv_heads


@dataclass(frozen=True, slots=True)
class Routed:
    """The choice of experts. ids [tokens, top_k], likeliest first; shares [tokens, top_k], how much of each; inner:
    the tokens [tokens, hidden] that the experts take."""

    ids: Tensor
    shares: Tensor
    inner: Inner


@dataclass(frozen=True, slots=True)
class Scored:
    """What a router thinks of each expert, before the choice. scores [tokens, experts]; inner: as in ``Routed``."""

    scores: Tensor
    inner: Inner


@dataclass(frozen=True, slots=True)
class Router:
    """x -> the experts of norm(x), in two steps: score(x), and choose(scores) -> ids and shares, as ``kernels.router``
    says with ``normalize``."""

    score: Callable[[Tensor], Scored]
    choose: Callable[[Tensor], tuple[Tensor, Tensor]]
    normalize: bool

    def __call__(self, x: Tensor) -> Routed:
        return self.routed(self.score(x))

    def routed(self, scored: Scored) -> Routed:
        """With the choice made."""
        return Routed(*self.choose(scored.scores), scored.inner)


@dataclass(frozen=True, slots=True)
class Expert:
    """The matrices of one expert: gate and up to be stacked, and down."""

    gate_up: tuple[Matrix, ...]
    down: Matrix


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """See ``kernels.hyper_connections``. norm: of each stream, weight [streams, hidden]; inject: None where nothing
    goes back into the streams."""

    norm: Norm
    down: Matrix
    up: Matrix
    inject: Matrix | None
    rank: int  # rows of down

    @property
    def num_streams(self) -> int:
        return int(self.norm.weight.shape[0])


NormLinearFn = Callable[[Tensor], Tensor]  # x -> linear(norm(x)) [tokens, rows]
# (qkv [tokens, num_projected * head_dim], ..., the layer's cache, ...) -> attended heads
AttentionFn = Callable[[Tensor, Rotation, Tensor, StepBatch], Inner]
# (projected, gates, the layer's states, ...) -> the heads that linear attention reads, normalised and gated
DeltaNetFn = Callable[[Tensor, Tensor, DeltaState, StepBatch], Inner]
# (qkv, index_qk [tokens, (index_heads + 1) * index_dim], ..., the layer's cache, ...) -> attended heads
IndexedAttentionFn = Callable[[Tensor, Tensor, Rotation, IndexedCache, StepBatch], Inner]
# streams [tokens, streams * hidden] -> what the block takes [tokens, hidden], the streams' shares of what it gives
HyperConnectionFn = Callable[[Tensor], tuple[Tensor, Tensor]]
# (streams, embeddings [tokens, embed_dim], the layer's state, ...) -> the streams, added to
NGramGateFn = Callable[[Tensor, Tensor, NGramState, StepBatch], Tensor]
LinearAddFn = Callable[..., Tensor]  # (inner, x, share [tokens, 1] or None) -> x + share * linear(inner)
NormGatedFn = Callable[[Tensor], Inner]  # x -> activation(gate(norm(x)), up(norm(x)))
ExpertsFn = Callable[[Routed, Tensor], Tensor]  # (routed, x) -> x + the sum of shares * experts


class Kernels:
    """The steps on one device, activations in ``dtype``. Several matrices given to one step are stacked along their
    rows: one product costs one call where several cost theirs each.

    reads_pages: whether ``attention`` takes a ``PagedBatch``; here it takes an ``AttentionBatch``."""

    reads_pages = False

    def __init__(self, operations: Operations, dtype: torch.dtype) -> None:
        self.operations = operations
        self.dtype = dtype

    def embedding(self, table: Matrix) -> EmbeddingFn:
        """int64 [tokens] -> the residual stream."""
        return self.operations.embedding(table.kind, table.parts, self.dtype)

    def argmax(self, logits: Tensor) -> Tensor:
        """float32 [rows, vocab] -> int64 [rows]: the likeliest token, -1 where the largest logit is not finite."""
        return argmax(logits)

    def norm_linear(self, norm: Norm | None, matrices: Sequence[Matrix], *, wide: bool = False) -> NormLinearFn:
        """``norm``: None for what is normalised already, here as in other steps. ``wide``: the result in float32 where
        a device's products are anyway; here in ``dtype`` all the same."""
        normed, product = self._norm(norm), self._stacked(matrices)
        return lambda x: product(normed(x))

    def attention(self, heads: Heads) -> AttentionFn:
        """Norms of the heads, rotary positions, the new keys and values into the cache, attention."""
        return partial(_attend, self.operations, heads, self._heads_norm(heads), self._sinks(heads))

    def indexed_attention(self, heads: Heads, indexer: Indexer) -> IndexedAttentionFn:
        """As ``attention``, to the tokens that the indexer chooses."""
        norms = self._norm(indexer.query_norm), self._norm(indexer.key_norm)
        return partial(_attend_indexed, self.operations, heads, self._heads_norm(heads), indexer, norms)

    def hyper_connection(self, connection: HyperConnection) -> HyperConnectionFn:
        """See ``kernels.hyper_connections``."""
        normed, up = self._norm(connection.norm), self._stacked([connection.up])
        down, inject, streams = connection.down, connection.inject, connection.num_streams
        narrow = self._stacked([down] if inject is None else [down, inject])
        return lambda x: hyper_connections.mix(normed(x.unflatten(-1, (streams, -1))), narrow, up, connection.rank)

    def ngram_gate(self, layer: NGramLayer) -> NGramGateFn:
        """See ``kernels.ngram_gate``."""
        product = self._stacked([layer.key, layer.value])
        key_norm, query_norm, conv_norm = map(self._norm, (layer.key_norm, layer.query_norm, layer.conv_norm))
        streams, conv = layer.key_norm.weight.shape[0], layer.conv.to(self.dtype)

        def gate(x: Tensor, embeddings: Tensor, state: NGramState, batch: StepBatch) -> Tensor:
            wide = x.unflatten(-1, (streams, -1))
            key, value = product(embeddings).tensor_split([x.shape[-1]], -1)
            opened = ngram_gate.gated(key_norm(key.reshape(wide.shape)), query_norm(wide), value)
            inputs = conv_norm(opened).flatten(1)
            return x + opened.flatten(1) + ngram_gate.convolve_(inputs, conv, layer.dilation, state.conv, batch)

        return gate

    def delta_net(self, net: DeltaNet) -> DeltaNetFn:
        """projected [tokens, channels + value_heads * value_dim]: q, k, v and the output's gate; gates [tokens, 2 *
        value_heads]: b (beta before its sigmoid) and a (of the decay) -> [tokens, value_heads * value_dim]. The
        sequences' states are those behind the step's tokens afterwards."""
        return partial(delta_rule_reference.step, net, self.operations.delta_rule)

    def linear_add(self, matrix: Matrix) -> LinearAddFn:
        product = self._stacked([matrix])

        def add(inner: Tensor, x: Tensor, share: Tensor | None = None) -> Tensor:
            out = product(inner)
            return out.add_(x) if share is None else torch.addcmul(x, share, out)

        return add

    def norm_gated(self, norm: Norm | None, matrices: Sequence[Matrix], activation: Activation) -> NormGatedFn:
        """``matrices``: gate and up, in this order."""
        product, activate = self.norm_linear(norm, matrices), self._activation(activation)
        return lambda x: activate(product(x))

    def route(self, norm: Norm | None, router: Matrix, top_k: int, normalize: bool) -> Router:
        """``normalize``: see ``kernels.router``."""
        normed, product = self._norm(norm), self._stacked([router])

        def score(x: Tensor) -> Scored:
            inner = normed(x)
            return Scored(product(inner), inner)

        def choose(scores: Tensor) -> tuple[Tensor, Tensor]:
            shares, ids = self.operations.route(scores, top_k, normalize)
            return ids, shares

        return Router(score, choose, normalize)

    def experts(self, experts: Iterable[Expert], activation: Activation) -> ExpertsFn:
        """``experts``: taken one after another, so that each one's weights may be dropped once it is prepared."""
        activate = self._activation(activation)
        mlps = [self._mlp(expert, activate) for expert in experts]
        return lambda routed, x: self.operations.run_experts(routed.inner, routed.shares, routed.ids, mlps).add_(x)

    @property
    def misses(self) -> MissSteps | None:
        """What the device does about experts that its memory has not, of those whose blobs it reads; None: it needs
        all of them there."""
        return None

    def own(self, ids: Tensor, index: int, count: int, nobody: int) -> Tensor:
        """As ``kernels.own``."""
        return own(ids, index, count, nobody)

    def reads_blobs(self, layout: BlobLayout) -> bool:
        """Whether ``blob_experts`` runs experts whose blobs are laid out like this; else ``experts`` takes them."""
        return False

    def blob_experts(self, layout: BlobLayout, addresses: Tensor, activation: Activation) -> ExpertsFn:
        """``addresses``: int64 [experts] on the device, at which each expert's blob begins. They are read at every
        call, so that an expert may be moved between two."""
        raise NotImplementedError(f"{type(self).__name__} reads no blobs")

    # --- inside

    def _norm(self, norm: Norm | None) -> Callable[[Tensor], Tensor]:
        if norm is None:
            return lambda x: x
        return self.operations.rms_norm(norm.weight, norm.eps, self.dtype)

    def _heads_norm(self, heads: Heads) -> Callable[[Tensor], Tensor] | None:
        if heads.query_norm is None or heads.key_norm is None:
            return None
        query, key = heads.query_norm.weight, heads.key_norm.weight
        weight = torch.cat([query.expand(heads.num_heads, -1), key.expand(heads.num_kv_heads, -1)])
        return self._norm(Norm(weight, heads.query_norm.eps))

    def _sinks(self, heads: Heads) -> Tensor | None:
        return None if heads.sinks is None else heads.sinks.to(self.dtype)

    def _stacked(self, matrices: Sequence[Matrix]) -> LinearFn:
        if len({matrix.kind for matrix in matrices}) > 1:
            products = [self._stacked([matrix]) for matrix in matrices]
            return lambda x: torch.cat([product(x) for product in products], -1)
        biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
        assert len(biases) in (0, len(matrices)), "some of the stacked matrices have a bias and some not"
        first = matrices[0]
        parts = {part: _stack([matrix.parts[part] for matrix in matrices]) for part in first.parts}
        return self.operations.linear(first.kind, parts, _stack(biases) if biases else None, self.dtype)

    def _activation(self, activation: Activation) -> Callable[[Tensor], Tensor]:
        if activation.limit is None:
            return self.operations.silu_mul
        clamped_swiglu, limit = self.operations.clamped_swiglu, activation.limit
        return lambda gate_up: clamped_swiglu(gate_up, limit)

    def _mlp(self, expert: Expert, activate: Callable[[Tensor], Tensor]) -> LinearFn:
        gate_up, down = self._stacked(expert.gate_up), self._stacked([expert.down])
        return lambda x: down(activate(gate_up(x)))


def _attend(
    operations: Operations,
    heads: Heads,
    norm: Callable[[Tensor], Tensor] | None,
    sinks: Tensor | None,
    qkv: Tensor,
    rotation: Rotation,
    cache: Tensor,
    batch: StepBatch,
) -> Tensor:
    assert isinstance(batch, AttentionBatch), "these operations gather the pages that they read"
    qkv = _turned(operations, heads, norm, qkv, rotation, cache, batch)
    out = operations.paged_attention(qkv[:, : heads.num_heads], cache, batch, heads.window, sinks)
    return _opened(heads, qkv, out)


def _attend_indexed(
    operations: Operations,
    heads: Heads,
    norm: Callable[[Tensor], Tensor] | None,
    indexer: Indexer,
    norms: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]],
    qkv: Tensor,
    index_qk: Tensor,
    rotation: Rotation,
    cache: IndexedCache,
    batch: StepBatch,
) -> Tensor:
    assert isinstance(batch, AttentionBatch), "these operations gather the pages that they read"
    starts, (query_norm, key_norm) = rotation.groups, norms
    assert starts is not None, "a model with indexers turns groups' keys"
    qkv = _turned(operations, heads, norm, qkv, rotation, cache.pages, batch)
    *queries, keys = index_qk.unflatten(1, (-1, indexer.head_dim)).unbind(1)
    turned = rotation.cos.shape[-1]

    def finish(means: Tensor, rows: Tensor) -> Tensor:
        ready = key_norm(means)
        operations.rope_(ready[..., :turned], starts.cos[rows], starts.sin[rows])
        return ready

    indexed.write_index(keys, cache, batch, indexer.group_size, finish)
    index_query = query_norm(torch.stack(queries, 1))
    operations.rope_(index_query[..., :turned], rotation.cos, rotation.sin)
    out = operations.indexed_attention(qkv[:, : heads.num_heads], index_query, cache, batch, indexer)
    return _opened(heads, qkv, out)


def _turned(
    operations: Operations,
    heads: Heads,
    norm: Callable[[Tensor], Tensor] | None,
    qkv: Tensor,
    rotation: Rotation,
    cache: Tensor,
    batch: AttentionBatch,
) -> Tensor:
    """[tokens, num_projected, head_dim] with queries and keys turned; keys and values are left in the cache."""
    num_heads, num_kv_heads = heads.num_heads, heads.num_kv_heads
    qkv = qkv.view(len(qkv), heads.num_projected, heads.head_dim)
    queries_keys = qkv[:, : num_heads + num_kv_heads]
    if norm is not None:
        queries_keys.copy_(norm(queries_keys))
    operations.rope_(queries_keys[..., : rotation.cos.shape[-1]], rotation.cos, rotation.sin)
    keys_values = qkv[:, num_heads : num_heads + 2 * num_kv_heads].unflatten(1, (2, num_kv_heads))
    operations.write_kv(keys_values, cache, batch.slots)
    return qkv


def _opened(heads: Heads, qkv: Tensor, out: Tensor) -> Tensor:
    """What is attended to, as far as its gates open."""
    if heads.gated:
        out = out * torch.sigmoid(qkv[:, heads.num_heads + 2 * heads.num_kv_heads :])
    return out.flatten(1)


def _stack(tensors: list[Tensor]) -> Tensor:
    """One tensor that is no view of a larger one: what is left of an expert's blob would keep all of it in memory."""
    if len(tensors) > 1:
        return torch.cat(tensors)
    (tensor,) = tensors
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
