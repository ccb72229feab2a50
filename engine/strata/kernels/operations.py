"""The plain operations that a layer consists of, and which version of each a device gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strata.kernels.attention import reference as attention_reference
from strata.kernels.attention import sdpa
from strata.kernels.attention.batch import AttentionBatch
from strata.kernels.clamped_swiglu import reference as clamped_swiglu_reference
from strata.kernels.delta_rule import cpu as delta_rule_cpu
from strata.kernels.delta_rule import reference as delta_rule_reference
from strata.kernels.delta_rule.reference import DeltaRule
from strata.kernels.embedding import reference as embedding_reference
from strata.kernels.embedding.reference import EmbeddingFn
from strata.kernels.experts import reference as experts_reference
from strata.kernels.experts.reference import ExpertFn
from strata.kernels.indexed_attention import reference as indexed_reference
from strata.kernels.indexed_attention import sdpa as indexed_sdpa
from strata.kernels.indexed_attention.indexer import IndexedCache, Indexer
from strata.kernels.linear import cpu as linear_cpu
from strata.kernels.linear import reference as linear_reference
from strata.kernels.linear.reference import LinearFn
from strata.kernels.rms_norm import cpu as rms_norm_cpu
from strata.kernels.rms_norm import reference as rms_norm_reference
from strata.kernels.rms_norm.reference import NormFn
from strata.kernels.rope import reference as rope_reference
from strata.kernels.router import reference as router_reference
from strata.kernels.silu_mul import reference as silu_mul_reference


@dataclass(frozen=True, slots=True)
class Operations:
    """Every plain operation; each field's contract is that of the reference of the same name.

    linear, embedding and rms_norm are the references' ``prepare``: they put a weight into the order that its kernel
    wants, once, and return the operation.
    """

    linear: Callable[[str, Mapping[str, Tensor], Tensor | None, torch.dtype], LinearFn]
    embedding: Callable[[str, Mapping[str, Tensor], torch.dtype], EmbeddingFn]
    rms_norm: Callable[[Tensor, float, torch.dtype], NormFn]
    rope_: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    clamped_swiglu: Callable[[Tensor, float], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor], None]
    paged_attention: Callable[[Tensor, Tensor, AttentionBatch, int | None, Tensor | None], Tensor]
    indexed_attention: Callable[[Tensor, Tensor, IndexedCache, AttentionBatch, Indexer], Tensor]
    delta_rule: DeltaRule
    route: Callable[[Tensor, int, bool], tuple[Tensor, Tensor]]
    run_experts: Callable[[Tensor, Tensor, Tensor, Sequence[ExpertFn]], Tensor]


REFERENCE = Operations(
    linear=linear_reference.prepare,
    embedding=embedding_reference.prepare,
    rms_norm=rms_norm_reference.prepare,
    rope_=rope_reference.rope_,
    silu_mul=silu_mul_reference.silu_mul,
    clamped_swiglu=clamped_swiglu_reference.clamped_swiglu,
    write_kv=attention_reference.write_kv,
    paged_attention=attention_reference.paged_attention,
    indexed_attention=indexed_reference.indexed_attention,
    delta_rule=delta_rule_reference.delta_rule,
    route=router_reference.route,
    run_experts=experts_reference.run_experts,
)


def operations_for(device: torch.device, dtype: torch.dtype) -> Operations:
    """The fastest versions there are for ``device`` and activations in ``dtype``."""
    operations = replace(
        REFERENCE, paged_attention=sdpa.paged_attention, indexed_attention=indexed_sdpa.indexed_attention
    )
    if device.type != "cpu":
        return operations
    operations = replace(operations, delta_rule=delta_rule_cpu.delta_rule)
    if dtype == torch.bfloat16:
        return replace(operations, linear=linear_cpu.prepare, rms_norm=rms_norm_cpu.prepare)
    return operations
