"""Bytes of a model's weights, part by part: what a store of a bit format keeps, and what one token reads of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from strata import quant
from strata.config import ModelConfig
from strata.plan.shape import Role, TensorSpec, needed, stored_format

# Bits of a weight that the CPU's kernels have re-ordered (kernels.linear.cpu); other formats stay as they are stored.
PREPARED_BITS = {"int8": 10, "int4": 5}

PLAIN_BYTES = 2  # of a number in a norm, bias or sink, which keep the source's type: bf16 as a rule

HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class WeightParts:
    """Bytes of each part. ``dense``: MLPs of layers without experts, experts that every token passes, and what
    n-grams' embeddings are multiplied with."""

    embedding: float
    head: float  # 0: the embedding is the head, too, and one copy serves as both
    attention: float
    dense: float
    router: float
    mixers: float  # of residual streams
    norms: float
    ngrams: float  # tables on disk, of which tokens read rows through the page cache
    expert: float  # one routed expert
    num_experts: int  # routed experts of all layers
    experts_per_token: int  # of all layers
    vocab_size: int

    @property
    def experts(self) -> float:
        """All routed experts."""
        return self.expert * self.num_experts

    @property
    def shared(self) -> float:
        """Everything but the routed experts and tables of n-grams."""
        return self.embedding + self.head + self.attention + self.dense + self.router + self.mixers + self.norms

    @property
    def total(self) -> float:
        """But for tables of n-grams."""
        return self.shared + self.experts

    @property
    def shared_per_token(self) -> float:
        """What every token reads beside its experts: all of ``shared``, but one row only of an embedding that is not
        the head as well."""
        unread = self.embedding * (1 - 1 / self.vocab_size) if self.head else 0.0
        return self.shared - unread

    @property
    def experts_per_token_bytes(self) -> float:
        """The routed experts that one token takes."""
        return self.expert * self.experts_per_token


@lru_cache(maxsize=64)  # of a large model the tensors of all experts are gone through
def weight_parts(model: ModelConfig, dtype: str, expert_format: str | None = None) -> WeightParts:
    """The parts in a store of ``dtype``. ``expert_format``: what experts are packed in whatever it is; None: in it."""

    return sum_parts(model, lambda spec: _stored_bytes(spec, _format(spec, dtype, expert_format)))


@lru_cache(maxsize=64)
def loaded_parts(model: ModelConfig, dtype: str, device: str, expert_format: str | None = None) -> WeightParts:
    """The parts in the memory of a device ("cpu" or "cuda"): a card has them as the store, a CPU as
    ``prepared_parts``. Arguments else as of ``weight_parts``."""
    if device != "cpu":
        return weight_parts(model, dtype, expert_format)
    return prepared_parts(model, lambda spec: _format(spec, dtype, expert_format))


def prepared_parts(model: ModelConfig, format_of: Callable[[TensorSpec], str | None]) -> WeightParts:
    """The parts as the CPU's kernels re-order them, of a store that keeps a tensor in ``format_of(spec)``, None being
    no bit format. A tied embedding is there twice, once for each use."""

    def prepared(spec: TensorSpec) -> float:
        name = format_of(spec)
        if name in PREPARED_BITS:
            return PREPARED_BITS[name] * prod(spec.shape) / 8
        return _stored_bytes(spec, name)

    def size(spec: TensorSpec) -> float:
        is_table = spec.role is Role.EMBEDDING and spec.name != HEAD  # rows are gathered as they are stored
        return _stored_bytes(spec, format_of(spec)) if is_table else prepared(spec)

    parts = sum_parts(model, size)
    if not model.tie_word_embeddings:
        return parts
    table = next(spec for spec in needed(model) if spec.role is Role.EMBEDDING)
    return replace(parts, head=prepared(table))


def _format(spec: TensorSpec, dtype: str, expert_format: str | None) -> str | None:
    if spec.role is Role.EXPERT and expert_format is not None:
        return expert_format
    return stored_format(spec, dtype)


def _stored_bytes(spec: TensorSpec, name: str | None) -> int:
    if name is None:
        return PLAIN_BYTES * prod(spec.shape)
    rows, cols = spec.shape
    return quant.get(name).num_bytes(rows, cols)


def sum_parts(model: ModelConfig, size: Callable[[TensorSpec], float]) -> WeightParts:
    """The parts when a tensor takes ``size(spec)`` bytes."""
    total: defaultdict[str, float] = defaultdict(float)
    for spec in needed(model):
        total[_part(spec)] += size(spec)
    num_expert_layers = sum(model.expert_layers)
    num_experts = model.experts.num_experts * num_expert_layers if model.experts else 0
    return WeightParts(
        embedding=total["embedding"],
        head=total["head"],
        attention=total["attention"],
        dense=total["dense"],
        router=total["router"],
        mixers=total["mixers"],
        ngrams=total["ngrams"],
        norms=total["norms"],
        expert=total["experts"] / num_experts if num_experts else 0,
        num_experts=num_experts,
        experts_per_token=model.experts.num_experts_per_tok * num_expert_layers if model.experts else 0,
        vocab_size=model.vocab_size,
    )


@lru_cache(maxsize=64)
def weight_counts(model: ModelConfig) -> WeightParts:
    """The parts as numbers of weights, those of matrices alone."""
    return sum_parts(model, lambda spec: 0 if spec.role is Role.VECTOR else prod(spec.shape))


def _part(spec: TensorSpec) -> str:
    if spec.expert is not None:
        return "experts"
    if spec.role is Role.EMBEDDING:
        return "head" if spec.name == HEAD else "embedding"
    if spec.role is Role.MIXER:
        return "mixers"
    if spec.role is Role.NGRAMS:
        return "ngrams"
    if spec.role is Role.ROUTER or spec.name.endswith(".mlp.gate.bias"):
        return "router"
    if ".self_attn." in spec.name or ".linear_attn." in spec.name:
        return "attention"
    return "dense" if ".mlp." in spec.name or spec.role is Role.MATRIX else "norms"
