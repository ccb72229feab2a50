"""A scheduled batch to tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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


def build_inputs(
    batch: Batch,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    windows: Collection[int | None] = (None,),
) -> Inputs:
    """Tensors of the step; masks are in ``dtype``. ``windows``: the different ones of the model's layers.

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
    longest = max(sequence.end for sequence in batch.sequences)
    # A window that reaches over every sequence is none.
    narrowed = {window: None if window is None or window >= longest else window for window in windows}
    split = {
        window: _split([_Seen.of(sequence, window, block_size) for sequence in batch.sequences], block_size)
        for window in set(narrowed.values())
    }
    for groups in split.values():
        for group in groups:
            most = max(len(seen.blocks) for seen in group)
            packer.add([block for seen in group for block in (*seen.blocks, *[0] * (most - len(seen.blocks)))])
            packer.add([seen.start for seen in group])
            packer.add([seen.length for seen in group])
    tensors = iter(packer.to(device))
    token_ids_t, positions_t, slots_t, sampled_t = (next(tensors) for _ in range(4))
    built = {window: tuple(_groups(groups, tensors, positions_t, window, dtype)) for window, groups in split.items()}
    return Inputs(
        token_ids_t,
        AttentionBatch(positions_t, slots_t, {window: built[narrow] for window, narrow in narrowed.items()}),
        None if len(sampled) == len(token_ids) else sampled_t,
        len(sampled),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the new tokens of a sequence see: the positions from ``start``, where a block begins, to their own."""

    sequence: ScheduledSequence
    start: int
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, sequence: ScheduledSequence, window: int | None, block_size: int) -> _Seen:
        first = 0 if window is None else max(0, sequence.start + 1 - window) // block_size
        return cls(sequence, first * block_size, sequence.block_ids[first : -(-sequence.end // block_size)])

    @property
    def num_tokens(self) -> int:
        return len(self.sequence.token_ids)

    @property
    def length(self) -> int:
        return self.sequence.end - self.start


def _split(sequences: Sequence[_Seen], block_size: int) -> list[list[_Seen]]:
    """Neighbouring sequences with one token each together, while padding and memory allow; every chunk alone."""
    groups: list[list[_Seen]] = []
    decoding: list[_Seen] = []
    for seen in sequences:
        if seen.num_tokens == 1:
            decoding.append(seen)
            continue
        groups.extend(_split_decoding(decoding, block_size))
        decoding = []
        groups.append([seen])
    groups.extend(_split_decoding(decoding, block_size))
    return groups


def _split_decoding(sequences: list[_Seen], block_size: int) -> list[list[_Seen]]:
    """All together, else each half likewise."""
    if not sequences:
        return []
    blocks = [len(seen.blocks) for seen in sequences]
    gathered = max(blocks) * len(blocks)
    if len(blocks) == 1 or gathered <= min(MAX_PADDING * sum(blocks), MAX_GATHERED_POSITIONS // block_size):
        return [sequences]
    half = len(blocks) // 2
    return _split_decoding(sequences[:half], block_size) + _split_decoding(sequences[half:], block_size)


def _groups(
    groups: Sequence[Sequence[_Seen]],
    tensors: Iterator[Tensor],
    positions: Tensor,
    window: int | None,
    dtype: torch.dtype,
) -> Iterator[AttentionGroup]:
    """``tensors``: blocks, starts and lengths of each group in turn."""
    begin = 0
    for group in groups:
        end = begin + sum(seen.num_tokens for seen in group)
        blocks, starts, lengths = next(tensors), next(tensors), next(tensors)
        kv_len = max(seen.length for seen in group)
        mask, causal = None, False
        if end - begin > len(group):
            causal = group[0].sequence.start == 0 and (window is None or kv_len <= window)
            if not causal:
                mask = _mask((positions[begin:end] - starts)[:, None], kv_len, window, dtype)
        elif any(seen.length != kv_len or (window is not None and kv_len > window) for seen in group):
            mask = _mask((lengths - 1)[:, None, None, None], kv_len, window, dtype)
        yield AttentionGroup(begin, end, len(group), blocks, starts, lengths, kv_len, mask, causal)
        begin = end


def _mask(last: Tensor, kv_len: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 at the ``window`` positions up to ``last`` [..., 1], minus infinity at all others: [..., kv_len]."""
    positions = torch.arange(kv_len, device=last.device)
    hidden = positions > last
    if window is not None:
        hidden |= positions <= last - window
    return torch.zeros(hidden.shape, dtype=dtype, device=last.device).masked_fill_(hidden, -torch.inf)


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
