"""Which KV blocks belong to which request: the book-keeping of the paged cache, ids only."""

from __future__ import annotations


class BlockManager:
    """Hands out KV blocks 0 .. num_blocks - 1, each to one request at a time.

    A request's blocks are in order of position: its block ``i`` holds positions ``i * block_size`` and on.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # The block freed last is given first: its memory is the likeliest to be in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._owned: dict[str, tuple[int, ...]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no request owns."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens take."""
        return -(-num_tokens // self.block_size)

    def owned_by(self, request_id: str) -> tuple[int, ...]:
        """The request's blocks; empty for one that owns none."""
        return self._owned.get(request_id, ())

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """Give the request the blocks that it lacks for ``num_tokens`` tokens; False, and none, if too few are free."""
        owned = self._owned.get(request_id, ())
        num_missing = self.blocks_for(num_tokens) - len(owned)
        if num_missing > len(self._free):
            return False
        if num_missing > 0:
            self._owned[request_id] = owned + tuple(self._free.pop() for _ in range(num_missing))
        return True

    def free(self, request_id: str) -> None:
        """Take back all blocks of the request, which may own none."""
        self._free.extend(reversed(self._owned.pop(request_id, ())))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or owned exactly once."""
        seen = sorted(self._free + [block for owned in self._owned.values() for block in owned])
        if seen != list(range(self.num_blocks)):
            raise AssertionError(f"{self.num_blocks} KV blocks exist, but free and owned ones together are {seen}")
