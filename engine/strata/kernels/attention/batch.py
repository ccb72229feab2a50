"""What one step's tokens attend to: built once a step, read by every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Consecutive rows of the step that one attention call takes: ``num_seqs`` sequences with one new token each
    (decode), or one sequence with a chunk of new tokens (prefill).

    begin, end: rows of the step. blocks: int64 [num_seqs * blocks of the longest], the KV blocks of each sequence from
    the first that any of its new tokens sees, padded with block 0. starts: int64 [num_seqs], the position with which
    these begin. lengths: int64 [num_seqs], positions in them, new tokens included; kv_len is the longest. mask:
    additive, broadcast to [num_seqs, 1, query rows, kv_len]; None where nothing is masked, or where ``causal`` says it:
    query row i sees positions 0 .. i.
    """

    begin: int
    end: int
    num_seqs: int
    blocks: Tensor
    starts: Tensor
    lengths: Tensor
    kv_len: int
    mask: Tensor | None = None
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Drafted:
    """Where the states of linear attention stand in a step that may have drafts: behind tokens that are sure, since a
    state cannot be taken back. int32 [seqs] each. replayed: tokens right before the step's that a sequence's state
    lacks, those of its last draft that were right. drafts: of its tokens in the step the last ones, which its state
    shall lack."""

    replayed: Tensor
    drafts: Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """positions: int64 [tokens] of each token in its sequence. slots: int64 [tokens], where its key and value go
    (block * block_size + offset). groups: of each sliding window that the model has (None: it sees all), covering all
    rows in order. starts: int32 [seqs + 1], the first row of each sequence, then the end of the last. states: int32
    [seqs], each sequence's slot in the states of linear attention; None where the model has none. drafted: of these
    states; None where steps have no drafts."""

    positions: Tensor
    slots: Tensor
    starts: Tensor
    groups: Mapping[int | None, tuple[AttentionGroup, ...]]
    states: Tensor | None = None
    drafted: Drafted | None = None


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """For kernels that read the cache's blocks where they lie, all sequences in one call.

    positions, slots: as in ``AttentionBatch``. tables: int32 [seqs, width], each sequence's KV blocks from its first
    on, padded with block 0. lengths: int32 [seqs], positions in each sequence, new tokens included; 0 marks a row that
    only fills up the step: it sees nothing and its result is not read. starts: int32 [seqs + 1], the first row of each
    sequence, then the end of the last. max_query: new tokens of the sequence that has most; with 1 every row is a
    sequence of its own. states, drafted: as in ``AttentionBatch``; a row that fills up has a slot that no sequence has.
    """

    positions: Tensor
    slots: Tensor
    tables: Tensor
    lengths: Tensor
    starts: Tensor
    max_query: int
    states: Tensor | None = None
    drafted: Drafted | None = None


StepBatch: TypeAlias = AttentionBatch | PagedBatch
