"""What sequences have of the caches: KV blocks that come as they grow, beginnings that they share, and a state."""

from __future__ import annotations

from collections.abc import Iterable

from strata.config.engine import MAX_DRAFT
from strata.scheduler.blocks import BlockManager
from strata.scheduler.sequence import Sequence
from strata.scheduler.snapshots import Snapshots
from strata.scheduler.states import StateSlots

MIN_SNAPSHOT_BLOCKS = 4  # that a state which is kept is ahead of the one before: fewer are computed about as fast

Copies = tuple[tuple[int, int], ...]  # of slots: from, to


class SequenceCache:
    """What each sequence has of the pools. ``share_prefixes``: whether those that begin alike have it together.

    ``num_states``: sequences that may have a state of linear attention; 0: the model has none. Who passes over computed
    blocks then needs the state behind them: ``num_snapshots`` of these are kept.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, share_prefixes: bool, num_states: int = 0, num_snapshots: int = 0
    ) -> None:
        self.states = StateSlots(num_states)
        self.snapshots = Snapshots(num_states, num_snapshots)
        self.blocks = BlockManager(num_blocks, block_size, self.snapshots.drop)
        self.num_queries = 0  # prompt tokens of sequences that began to run
        self.num_hits = 0  # those of them that were there
        self._share_prefixes = share_prefixes and (not num_states or num_snapshots > 0)
        self._restores: list[tuple[int, int]] = []  # of the step that is planned
        self._saves: list[tuple[int, int]] = []

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
        shared = self._passable(sequence) if self._share_prefixes else []
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

    def share(self, sequence: Sequence) -> None:
        """Let it pass over the blocks that are computed already."""
        if not self._share_prefixes or sequence.num_computed % self.blocks.block_size:
            return
        shared = self._passable(sequence)
        if not shared:
            return
        self.blocks.share(sequence.request_id, shared)
        num_tokens = len(shared) * self.blocks.block_size
        sequence.num_computed += num_tokens
        if not sequence.was_preempted:
            sequence.num_cached += num_tokens
            self.num_hits += num_tokens
        slot = self.state_of(sequence)
        if slot is not None:
            self._restores.append((self.snapshots.use(self._key_before(sequence, sequence.num_computed)), slot))
            sequence.kept = sequence.num_computed

    def waits(self, sequence: Sequence, coming: set[bytes]) -> bool:
        """Whether it can share from the next step on what this step computes. ``coming``: what ``keys_to`` gave of
        others."""
        if not coming or not self._share_prefixes or sequence.num_computed % self.blocks.block_size:
            return False
        if self.states.num_slots:
            return any(key in coming for key in sequence.shareable_keys())
        return next(sequence.shareable_keys(), None) in coming

    def cut(self, sequence: Sequence, end: int) -> int:
        """Where a chunk that may go to ``end`` ends: not behind a border of blocks at which its state is to be kept."""
        border = self._border(sequence, end)
        return end if border is None else border

    def plan(self, sequence: Sequence, end: int) -> list[bytes]:
        """It runs its tokens before ``end``, which ``cut`` gave, in the step that is planned: keys of what others can
        share from the next step on."""
        slot = self.state_of(sequence)
        if slot is None:
            return self._filled(sequence, end)
        if self._border(sequence, end) != end:
            return []
        key = self._key_before(sequence, end)
        snapshot = self.snapshots.reserve(sequence.request_id, key)
        if snapshot is None:
            return []
        self._saves.append((slot, snapshot))
        sequence.kept = end
        return [key]

    def take_copies(self) -> tuple[Copies, Copies]:
        """Restores and saves of the step that was planned."""
        copies = tuple(self._restores), tuple(self._saves)
        self._restores, self._saves = [], []
        return copies

    def computed(self, sequence: Sequence, end: int, num_right: int = 0) -> None:
        """It has run its tokens before ``end``: whoever begins alike may use the blocks that are full now. The last
        ``num_right`` were a draft."""
        first = sequence.num_computed // self.blocks.block_size
        for index, key in enumerate(self._filled(sequence, end), start=first):
            self.blocks.publish(sequence.request_id, index, key)
        self.snapshots.keep(sequence.request_id)
        sequence.num_computed = end
        sequence.num_lacking = num_right if self.states.num_slots else 0

    def shrink(self, sequence: Sequence) -> None:
        """Take back the blocks beyond its computed tokens: drafts were wrong."""
        self.blocks.shrink(sequence.request_id, sequence.num_computed)
        sequence.num_scheduled = sequence.num_computed

    def free(self, sequence: Sequence) -> None:
        """Take back its blocks and its state; it has computed nothing then."""
        self.blocks.free(sequence.request_id)
        self.states.free(sequence.request_id)
        self.snapshots.cancel(sequence.request_id)
        sequence.num_computed = sequence.num_scheduled = sequence.branch = sequence.kept = sequence.num_lacking = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless each has the blocks that it fills, under the right keys. Between steps."""
        self.blocks.check_integrity()
        self.states.check_integrity()
        self.snapshots.check_integrity()
        if any(not self.blocks.find([key]) for key in self.snapshots.keys):
            raise AssertionError("a state is kept behind a block that has gone")
        for sequence in sequences:
            owned = self.blocks_of(sequence)
            if len(owned) != self.blocks.blocks_for(max(sequence.num_computed, sequence.num_scheduled)):
                raise AssertionError(f"request {sequence.request_id} has blocks that it does not fill, or too few")
            if not 0 <= sequence.num_lacking <= max(0, min(sequence.num_computed - 1, MAX_DRAFT)):
                raise AssertionError(f"the state of request {sequence.request_id} lacks {sequence.num_lacking} tokens")
            num_full = sequence.num_computed // self.blocks.block_size
            for index, block in enumerate(owned):
                key = self.blocks.key_of(block)
                if key is not None and (index >= num_full or key != sequence.key(index)):
                    raise AssertionError(f"block {block} of request {sequence.request_id} is published as another")

    # --- inside

    def _passable(self, sequence: Sequence) -> list[int]:
        """The computed blocks with which it can go on; of a model with states up to the last one behind which a state
        is kept."""
        blocks = self.blocks.find(sequence.shareable_keys())
        if not self.states.num_slots or not blocks:
            return blocks
        size = self.blocks.block_size
        end = sequence.num_computed + len(blocks) * size
        sequence.branch = max(sequence.branch, end)
        while blocks and not self.snapshots.has(self._key_before(sequence, end)):
            blocks.pop()
            end -= size
        return blocks

    def _border(self, sequence: Sequence, end: int) -> int | None:
        """The next position, up to ``end``, at which its state is to be kept: the one to which others have computed the
        same, or the last border of blocks within its prompt, unless it is kept there or hardly before."""
        if not self._share_prefixes or not self.states.num_slots:
            return None
        size = self.blocks.block_size
        last = (len(sequence.request.prompt_token_ids) - 1) // size * size
        first = max(sequence.num_computed + 1, sequence.kept + MIN_SNAPSHOT_BLOCKS * size)
        borders = [border for border in sorted({sequence.branch, last}) if first <= border <= min(end, last)]
        return next((it for it in borders if not self.snapshots.has(self._key_before(sequence, it))), None)

    def _filled(self, sequence: Sequence, end: int) -> list[bytes]:
        """Keys of the blocks that are full when it has run its tokens before ``end``, and are not now."""
        size = self.blocks.block_size
        if not self._share_prefixes:
            return []
        return [sequence.key(index) for index in range(sequence.num_computed // size, end // size)]

    def _key_before(self, sequence: Sequence, border: int) -> bytes:
        return sequence.key(border // self.blocks.block_size - 1)
