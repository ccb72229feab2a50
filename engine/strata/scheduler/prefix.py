"""Which KV blocks hold which tokens, so that requests that begin alike share what is computed once."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

FIRST_KEY = b""  # what a sequence's first block follows


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full block: a hash of its tokens and of all before them. ``parent``: the key of the block before.

    256 bits of BLAKE2b. Two beginnings under one key would give a request the keys and values of another, and prompts
    come from strangers: the hash has to withstand people who look for such a pair.
    """
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=32).digest()


class PrefixCache:
    """Full, computed blocks by their key, and the order in which those without a user are given up."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # without a user; the one used longest ago first

    @property
    def num_idle(self) -> int:
        """Blocks that nobody uses and that can be given up."""
        return len(self._idle)

    def get(self, key: bytes) -> int | None:
        """The block with that key, if it is still there."""
        return self._blocks.get(key)

    def add(self, key: bytes, block: int) -> None:
        """Remember a block that is in use. Of two blocks with the same tokens the first stays, the other is unnamed."""
        if key not in self._blocks:
            self._blocks[key] = block
            self._keys[block] = key

    def take(self, block: int) -> None:
        """The block has a user again."""
        self._idle.pop(block, None)

    def release(self, block: int) -> bool:
        """The block has lost its last user; whether it is kept, as the last one to be given up."""
        if block not in self._keys:
            return False
        self._idle[block] = None
        return True

    def evict(self) -> tuple[int, bytes]:
        """Give up the idle block that was used longest ago, and its key."""
        block, _ = self._idle.popitem(last=False)
        key = self._keys.pop(block)
        del self._blocks[key]
        return block, key

    def key_of(self, block: int) -> bytes | None:
        """The key of a block; None for one that is not remembered."""
        return self._keys.get(block)

    def check_integrity(self) -> list[int]:
        """Raise AssertionError unless keys and blocks name each other; the idle blocks otherwise."""
        if {block: key for key, block in self._blocks.items()} != self._keys:
            raise AssertionError("the prefix cache's keys and blocks do not name each other")
        if not self._idle.keys() <= self._keys.keys():
            raise AssertionError("the prefix cache keeps blocks that no key names")
        return list(self._idle)
