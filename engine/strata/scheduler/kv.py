"""What sequences have of the caches: KV blocks that come as they grow, beginnings that they share, and a state."""

from __future__ import annotations

from collections.abc import Iterable

from strata.scheduler.blocks import BlockManager
from strata.scheduler.sequence import Sequence
from strata.scheduler.states import StateSlots


class SequenceCache:
    """What each sequence has of the pools. ``share_prefixes``: whether those that begin alike have it together.
    ``num_states``: sequences that may have a state of linear attention; 0: the model has none."""

    def __init__(self, num_blocks: int, block_size: int, *, share_prefixes: bool, num_states: int = 0) -> None:
        self.blocks = BlockManager(num_blocks, block_size)
        self.states = StateSlots(num_states)
        self.num_queries = 0  # prompt tokens of sequences that began to run
        self.num_hits = 0  # those of them that were there
        # Whoever passes over computed blocks lacks the state behind them.
        self._share_prefixes = share_prefixes and not num_states

    def blocks_of(self, sequence: Sequence) -> tuple[int, ...]:
        """The blocks that hold its computed tokens, and those of the step."""
        return self.blocks.owned_by(sequence.request_id)

    def state_of(self, sequence: Sequence) -> int | None:
        """The slot of its state; None where the model has none."""
        return self.states.owned_by(sequence.request_id)

    def num_missing(self, sequence: Sequence) -> int:
        """Blocks that its present tokens take beside those that it has."""
        return self.blocks.blocks_for(len(sequence.token_ids)) - len(self.blocks_of(sequence))

    def num_missing_for(self, sequences: Iterable[Sequence], num_more: int) -> int:
        """Free blocks that it takes to hold so many tokens more of each of them."""
        return sum(
            self.blocks.blocks_for(len(sequence.token_ids) + num_more) - len(self.blocks_of(sequence))
            for sequence in sequences
        )

    def num_needed(self, sequence: Sequence) -> int:
        """Free blocks that it would take to hold all its tokens; those that others use already are not."""
        shared = self.blocks.find(sequence.shareable_keys()) if self._share_prefixes else []
        return self.num_missing(sequence) - len(shared) + self.blocks.num_unused(shared)

    def room(self, sequence: Sequence, num_reserved: int) -> int:
        """How many more tokens it may run while so many blocks stay free."""
        num_free = max(0, self.blocks.num_free - num_reserved)
        return (len(self.blocks_of(sequence)) + num_free) * self.blocks.block_size - sequence.num_computed

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it the blocks for ``num_tokens`` tokens; False, and none, if too few are free."""
        return self.blocks.grow(sequence.request_id, num_tokens)

    def begin(self, sequence: Sequence) -> None:
        """It is let in: give it a slot for its state, and count its prompt, unless it was let in before."""
        if self.states.num_slots:
            self.states.take(sequence.request_id)
        if self._share_prefixes and not sequence.was_preempted:
            self.num_queries += len(sequence.token_ids)

    def share(self, sequence: Sequence) -> bytes | None:
        """Let it pass over the blocks that are computed already.

        Returns the key of the block that it would fill next; None if nobody could share that.
        """
        if not self._share_prefixes or sequence.num_computed % self.blocks.block_size:
            return None
        shared = self.blocks.find(sequence.shareable_keys())
        if shared:
            self.blocks.share(sequence.request_id, shared)
            num_tokens = len(shared) * self.blocks.block_size
            sequence.num_computed += num_tokens
            if not sequence.was_preempted:
                sequence.num_cached += num_tokens
                self.num_hits += num_tokens
        return next(sequence.shareable_keys(), None)

    def keys_to(self, sequence: Sequence, end: int) -> list[bytes]:
        """Keys of the blocks that are full when it has run its tokens before ``end``, and are not now."""
        size = self.blocks.block_size
        if not self._share_prefixes:
            return []
        return [sequence.key(index) for index in range(sequence.num_computed // size, end // size)]

    def computed(self, sequence: Sequence, end: int) -> None:
        """It has run its tokens before ``end``: whoever begins alike may use the blocks that are full now."""
        first = sequence.num_computed // self.blocks.block_size
        for index, key in enumerate(self.keys_to(sequence, end), start=first):
            self.blocks.publish(sequence.request_id, index, key)
        sequence.num_computed = end

    def free(self, sequence: Sequence) -> None:
        """Take back its blocks and its state; it has computed nothing then."""
        self.blocks.free(sequence.request_id)
        self.states.free(sequence.request_id)
        sequence.num_computed = sequence.num_scheduled = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless each has the blocks that it fills, under the right keys. Between steps."""
        self.blocks.check_integrity()
        self.states.check_integrity()
        for sequence in sequences:
            owned = self.blocks_of(sequence)
            if len(owned) != self.blocks.blocks_for(max(sequence.num_computed, sequence.num_scheduled)):
                raise AssertionError(f"request {sequence.request_id} has blocks that it does not fill, or too few")
            num_full = sequence.num_computed // self.blocks.block_size
            for index, block in enumerate(owned):
                key = self.blocks.key_of(block)
                if key is not None and (index >= num_full or key != sequence.key(index)):
                    raise AssertionError(f"block {block} of request {sequence.request_id} is published as another")
