"""Which KV blocks belong to which request: the book-keeping of the paged cache, ids only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from strata.scheduler.prefix import PrefixCache


class BlockManager:
    """Hands out KV blocks 0 .. num_blocks - 1.

    A request's blocks are in order of position: its block ``i`` holds positions ``i * block_size`` and on. Full blocks
    that were published may have several users; all others have one. A published block without a user keeps its content
    until the room is needed.
    """

    def __init__(self, num_blocks: int, block_size: int, forget: Callable[[bytes], None] = lambda key: None) -> None:
        """``forget``: told the key of a published block whose content is given up."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        # The block freed last is given first: its memory is the likeliest to be in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._owned: dict[str, tuple[int, ...]] = {}
        self._num_users = [0] * num_blocks
        self._cache = PrefixCache()
        self._forget = forget

    @property
    def num_free(self) -> int:
        """Blocks that no request uses, those with a content that may be used again included."""
        return len(self._free) + self._cache.num_idle

    @property
    def num_cached(self) -> int:
        """Blocks that no request uses and whose content may be used again."""
        return self._cache.num_idle

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens take."""
        return -(-num_tokens // self.block_size)

    def owned_by(self, request_id: str) -> tuple[int, ...]:
        """The request's blocks; empty for one that owns none."""
        return self._owned.get(request_id, ())

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """Give the request the blocks that it lacks for ``num_tokens`` tokens; False, and none, if too few are free."""
        owned = self._owned.get(request_id, ())
        num_missing = -(-num_tokens // self.block_size) - len(owned)
        if num_missing <= 0:
            return True
        if num_missing > self.num_free:
            return False
        self._owned[request_id] = owned + tuple(self._take_free() for _ in range(num_missing))
        return True

    def shrink(self, request_id: str, num_tokens: int) -> None:
        """Take back the blocks that the request has beyond ``num_tokens`` tokens, none of which was published."""
        owned, num_kept = self._owned.get(request_id, ()), self.blocks_for(num_tokens)
        if len(owned) <= num_kept:
            return
        self._owned[request_id] = owned[:num_kept]
        for block in reversed(owned[num_kept:]):
            self._num_users[block] -= 1
            self._free.append(block)

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The published blocks of the leading ``keys``, up to the first that is not there."""
        found = []
        for key in keys:
            block = self._cache.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def num_unused(self, blocks: Iterable[int]) -> int:
        """How many of these blocks no request uses."""
        return sum(self._num_users[block] == 0 for block in blocks)

    def share(self, request_id: str, blocks: Sequence[int]) -> None:
        """Let the request use published blocks, as those that follow its own."""
        for block in blocks:
            self._cache.take(block)
            self._num_users[block] += 1
        self._owned[request_id] = self._owned.get(request_id, ()) + tuple(blocks)

    def publish(self, request_id: str, index: int, key: bytes) -> None:
        """The request's block ``index`` is full and computed: whoever begins alike may use it."""
        self._cache.add(key, self._owned[request_id][index])

    def free(self, request_id: str) -> None:
        """Take back all blocks of the request, which may own none."""
        # The last block first: a beginning is likelier to be met again than what follows it.
        for block in reversed(self._owned.pop(request_id, ())):
            self._num_users[block] -= 1
            if self._num_users[block] == 0 and not self._cache.release(block):
                self._free.append(block)

    def key_of(self, block: int) -> bytes | None:
        """Under which key the block was published; None if it was not, or has been given up."""
        return self._cache.key_of(block)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free, kept or used, and counted right."""
        uses = Counter(block for owned in self._owned.values() for block in owned)
        seen = sorted([*self._free, *self._cache.check_integrity(), *uses])
        if seen != list(range(self.num_blocks)):
            raise AssertionError(f"{self.num_blocks} KV blocks exist; free, kept and used ones together are {seen}")
        if self._num_users != [uses[block] for block in range(self.num_blocks)]:
            raise AssertionError("the users of a KV block are not counted right")
        if any(len(set(owned)) != len(owned) for owned in self._owned.values()):
            raise AssertionError("a request has the same KV block twice")
        if any(count > 1 and self._cache.key_of(block) is None for block, count in uses.items()):
            raise AssertionError("requests share a KV block that was not published")
        if any(self._cache.key_of(block) is not None for block in self._free):
            raise AssertionError("a free KV block is still published")

    def _take_free(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, key = self._cache.evict()
            self._forget(key)
        self._num_users[block] = 1
        return block
