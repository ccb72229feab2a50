"""A scheduled batch to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strata.kernels.attention.batch import AttentionBatch, AttentionGroup
from strata.plan.memory import MAX_GATHERED_POSITIONS
from strata.scheduler.batch import Batch, ScheduledSequence

# Decoding sequences share one attention call, padded to the longest, while that reads at most this many times the
# positions that they have.
MAX_PADDING = 2.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """One step on the device. sampled: int64 rows whose logits are needed; None means every row."""

    token_ids: Tensor
    attention: AttentionBatch
    sampled: Tensor | None
    num_sampled: int


def build_inputs(batch: Batch, block_size: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Tensors of the step; masks are in ``dtype``.

    All integers travel in one tensor: one copy to the device a step.
    """
    packer = _Packer()
    positions: list[int] = []
    slots: list[int] = []
    token_ids: list[int] = []
    sampled: list[int] = []
    for sequence in batch.sequences:
        span = range(sequence.start, sequence.end)
        positions.extend(span)
        slots.extend(sequence.block_ids[p // block_size] * block_size + p % block_size for p in span)
        token_ids.extend(sequence.token_ids)
        if sequence.samples:
            sampled.append(len(token_ids) - 1)
    packer.add(token_ids)
    packer.add(positions)
    packer.add(slots)
    packer.add(sampled)
    groups = _split(batch.sequences, block_size)
    for group in groups:
        most = max(_num_blocks(sequence, block_size) for sequence in group)
        packer.add([block for sequence in group for block in _padded(sequence, block_size, most)])
        packer.add([sequence.end for sequence in group])
    tensors = iter(packer.to(device))
    token_ids_t, positions_t, slots_t, sampled_t = (next(tensors) for _ in range(4))
    built = []
    begin = 0
    for group in groups:
        blocks, lengths = next(tensors), next(tensors)
        end = begin + sum(len(sequence.token_ids) for sequence in group)
        built.append(_group(group, begin, end, blocks, lengths, positions_t[begin:end], dtype))
        begin = end
    return Inputs(
        token_ids_t,
        AttentionBatch(positions_t, slots_t, tuple(built)),
        None if len(sampled) == len(token_ids) else sampled_t,
        len(sampled),
    )


def _split(sequences: Sequence[ScheduledSequence], block_size: int) -> list[list[ScheduledSequence]]:
    """Neighbouring sequences with one token each together, while padding and memory allow; every chunk alone."""
    groups: list[list[ScheduledSequence]] = []
    decoding: list[ScheduledSequence] = []
    for sequence in sequences:
        if len(sequence.token_ids) == 1:
            decoding.append(sequence)
            continue
        groups.extend(_split_decoding(decoding, block_size))
        decoding = []
        groups.append([sequence])
    groups.extend(_split_decoding(decoding, block_size))
    return groups


def _split_decoding(sequences: list[ScheduledSequence], block_size: int) -> list[list[ScheduledSequence]]:
    """All together, else each half likewise."""
    if not sequences:
        return []
    blocks = [_num_blocks(sequence, block_size) for sequence in sequences]
    gathered = max(blocks) * len(blocks)
    if len(blocks) == 1 or gathered <= min(MAX_PADDING * sum(blocks), MAX_GATHERED_POSITIONS // block_size):
        return [sequences]
    half = len(blocks) // 2
    return _split_decoding(sequences[:half], block_size) + _split_decoding(sequences[half:], block_size)


def _group(
    sequences: list[ScheduledSequence],
    begin: int,
    end: int,
    blocks: Tensor,
    lengths: Tensor,
    positions: Tensor,
    dtype: torch.dtype,
) -> AttentionGroup:
    num_seqs = len(sequences)
    kv_len = max(sequence.end for sequence in sequences)
    mask, causal = None, False
    if end - begin > num_seqs:
        causal = sequences[0].start == 0
        if not causal:
            mask = _mask(positions[:, None] + 1, kv_len, dtype)
    elif any(sequence.end != kv_len for sequence in sequences):
        mask = _mask(lengths[:, None, None, None], kv_len, dtype)
    return AttentionGroup(begin, end, num_seqs, blocks, lengths, kv_len, mask, causal)


def _mask(limits: Tensor, kv_len: int, dtype: torch.dtype) -> Tensor:
    """0 at KV positions below ``limits`` [..., 1], minus infinity from there on: [..., kv_len]."""
    hidden = torch.arange(kv_len, device=limits.device) >= limits
    return torch.zeros(hidden.shape, dtype=dtype, device=limits.device).masked_fill_(hidden, -torch.inf)


def _num_blocks(sequence: ScheduledSequence, block_size: int) -> int:
    return -(-sequence.end // block_size)


def _padded(sequence: ScheduledSequence, block_size: int, length: int) -> list[int]:
    """The blocks that hold the sequence's positions, then block 0 up to ``length``."""
    used = list(sequence.block_ids[: _num_blocks(sequence, block_size)])
    return used + [0] * (length - len(used))


class _Packer:
    """Lists of integers as views of one int64 tensor."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._sizes: list[int] = []

    def add(self, values: list[int]) -> None:
        self._values.extend(values)
        self._sizes.append(len(values))

    def to(self, device: torch.device) -> tuple[Tensor, ...]:
        return torch.tensor(self._values, dtype=torch.int64).to(device, non_blocking=True).split(self._sizes)
