"""The block manager's book-keeping."""

from __future__ import annotations

import pytest

from strata.scheduler.blocks import BlockManager


def test_blocks_follow_the_tokens() -> None:
    blocks = BlockManager(num_blocks=4, block_size=16)
    for num_tokens, num_blocks in ((1, 1), (16, 1), (17, 2), (33, 3)):
        assert blocks.grow("a", num_tokens)
        assert len(blocks.owned_by("a")) == num_blocks
    assert len(set(blocks.owned_by("a"))) == 3
    blocks.check_integrity()


def test_growing_keeps_the_blocks_that_are_there() -> None:
    blocks = BlockManager(num_blocks=4, block_size=16)
    blocks.grow("a", 20)
    before = blocks.owned_by("a")
    blocks.grow("b", 1)
    blocks.grow("a", 40)
    assert blocks.owned_by("a")[:2] == before


def test_growth_that_does_not_fit_takes_nothing() -> None:
    blocks = BlockManager(num_blocks=3, block_size=16)
    assert blocks.grow("a", 17)
    assert not blocks.grow("b", 17)
    assert blocks.num_free == 1
    assert blocks.owned_by("b") == ()
    blocks.check_integrity()


def test_freed_blocks_can_be_had_again() -> None:
    blocks = BlockManager(num_blocks=2, block_size=16)
    blocks.grow("a", 32)
    blocks.free("a")
    blocks.free("never seen")
    assert blocks.num_free == 2
    assert blocks.grow("b", 32)
    blocks.check_integrity()


def test_integrity_check_finds_a_leak_and_a_double() -> None:
    leaking = BlockManager(num_blocks=2, block_size=16)
    leaking._free.pop()
    with pytest.raises(AssertionError, match="2 KV blocks exist"):
        leaking.check_integrity()
    doubled = BlockManager(num_blocks=2, block_size=16)
    doubled._free.append(0)
    with pytest.raises(AssertionError, match="2 KV blocks exist"):
        doubled.check_integrity()
