"""Who is attended to together where attention gathers the pages that it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from strata.kernels.attention.batch import AttentionBatch, AttentionGroup
from strata.plan.memory import MAX_GATHERED_POSITIONS
from strata.runner.pack import PackedStates, Packer
from strata.scheduler.batch import Batch, ScheduledSequence

# Decoding sequences share one attention call, padded to the longest, while that reads at most this many times the
# positions that they have.
MAX_PADDING = 2.0


class Gathered:
    """The groups of an ``AttentionBatch``: first their integers for ``packer``, then the batch of what that gave."""

    def __init__(
        self, batch: Batch, block_size: int, windows: Collection[int | None], packer: Packer, *, drafts: bool
    ) -> None:
        """``drafts``: whether steps may have some."""
        longest = max(sequence.end for sequence in batch.sequences)
        # A window that reaches over every sequence is none.
        self._narrowed = {window: None if window is None or window >= longest else window for window in windows}
        self._starts = packer.add(
            [0, *accumulate(len(sequence.token_ids) for sequence in batch.sequences)], torch.int32
        )
        self._states = PackedStates(batch, packer, drafts=drafts)
        self._groups: dict[int | None, list[_Group]] = {}
        for window in set(self._narrowed.values()):
            seen = [_Seen.of(sequence, window, block_size) for sequence in batch.sequences]
            self._groups[window] = [_Group.of(group, packer) for group in _split(seen, block_size)]

    def build(self, tensors: Sequence[Tensor], positions: Tensor, slots: Tensor, dtype: torch.dtype) -> AttentionBatch:
        """``tensors``: what the packer gave. Masks are in ``dtype``."""
        built = {
            window: tuple(_build(groups, tensors, positions, window, dtype)) for window, groups in self._groups.items()
        }
        groups = {window: built[narrow] for window, narrow in self._narrowed.items()}
        return AttentionBatch(positions, slots, tensors[self._starts], groups, *self._states.build(tensors))


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that one call takes, and the places of their integers in the packer."""

    members: Sequence[_Seen]
    blocks: int
    starts: int
    lengths: int

    @classmethod
    def of(cls, members: Sequence[_Seen], packer: Packer) -> _Group:
        most = max(len(seen.blocks) for seen in members)
        return cls(
            members,
            packer.add([block for seen in members for block in (*seen.blocks, *[0] * (most - len(seen.blocks)))]),
            packer.add([seen.start for seen in members]),
            packer.add([seen.length for seen in members]),
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


def _build(
    groups: Sequence[_Group], tensors: Sequence[Tensor], positions: Tensor, window: int | None, dtype: torch.dtype
) -> Iterator[AttentionGroup]:
    begin = 0
    for group in groups:
        members = group.members
        end = begin + sum(seen.num_tokens for seen in members)
        blocks, starts, lengths = tensors[group.blocks], tensors[group.starts], tensors[group.lengths]
        kv_len = max(seen.length for seen in members)
        mask, causal = None, False
        if end - begin > len(members):
            causal = members[0].sequence.start == 0 and (window is None or kv_len <= window)
            if not causal:
                mask = _mask((positions[begin:end] - starts)[:, None], kv_len, window, dtype)
        elif any(seen.length != kv_len or (window is not None and kv_len > window) for seen in members):
            mask = _mask((lengths - 1)[:, None, None, None], kv_len, window, dtype)
        yield AttentionGroup(begin, end, len(members), blocks, starts, lengths, kv_len, mask, causal)
        begin = end


def _mask(last: Tensor, kv_len: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 at the ``window`` positions up to ``last`` [..., 1], minus infinity at all others: [..., kv_len]."""
    positions = torch.arange(kv_len, device=last.device)
    hidden = positions > last
    if window is not None:
        hidden |= positions <= last - window
    return torch.zeros(hidden.shape, dtype=dtype, device=last.device).masked_fill_(hidden, -torch.inf)
