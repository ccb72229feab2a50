"""Requests that begin alike share what is computed once."""

from __future__ import annotations

import pytest

from strata.config import SchedulerConfig
from strata.request import FinishReason, GenerationRequest, SamplingParams
from strata.scheduler import sequence as sequence_module
from strata.scheduler.blocks import BlockManager
from strata.scheduler.prefix import FIRST_KEY, block_key
from tests.scheduler.fake_model import run_alone
from tests.scheduler.simulation import Simulation

SIZE = 4
A, B, C = (block_key(FIRST_KEY, (first,) * SIZE) for first in (1, 2, 3))


def world(num_blocks: int = 32, *, prefix_cache: bool = True, max_num_batched_tokens: int = 32) -> Simulation:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=max_num_batched_tokens, decode_latency_seconds=None)
    return Simulation(config, num_blocks=num_blocks, block_size=SIZE, max_model_len=64, prefix_cache=prefix_cache)


def request(name: str, prompt: range | tuple[int, ...], max_tokens: int = 1, priority: int = 0) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return GenerationRequest(name, tuple(prompt), sampling, priority)


def shapes(simulation: Simulation) -> dict[str, tuple[int, int]]:
    """One step: the first position and the number of tokens of each part."""
    return {part.request_id: (part.start, len(part.token_ids)) for part in simulation.step().sequences}


# --- the allocator


def test_a_published_block_has_several_users_and_outlives_them() -> None:
    blocks = BlockManager(num_blocks=4, block_size=SIZE)
    blocks.grow("a", SIZE)
    blocks.publish("a", 0, A)
    (block,) = blocks.owned_by("a")
    assert blocks.find([A, B]) == [block]
    blocks.share("b", [block])
    blocks.check_integrity()
    assert (blocks.num_free, blocks.num_unused([block])) == (3, 0)
    blocks.free("a")
    assert (blocks.num_free, blocks.num_cached) == (3, 0)
    blocks.free("b")
    assert (blocks.num_free, blocks.num_cached, blocks.num_unused([block])) == (4, 1, 1)
    assert blocks.find([A]) == [block]
    blocks.check_integrity()


def test_what_was_used_longest_ago_is_given_up_first() -> None:
    blocks = BlockManager(num_blocks=3, block_size=SIZE)
    for name, key in (("a", A), ("b", B), ("c", C)):
        blocks.grow(name, SIZE)
        blocks.publish(name, 0, key)
    for name in "bac":
        blocks.free(name)
    blocks.share("again", blocks.find([B]))
    blocks.free("again")
    for expected in ([A], [A, C], [A, B, C]):
        blocks.grow("new", SIZE * len(expected))
        assert [key for key in (A, B, C) if not blocks.find([key])] == expected
        blocks.check_integrity()


def test_empty_blocks_are_taken_before_kept_ones_and_ends_before_beginnings() -> None:
    blocks = BlockManager(num_blocks=3, block_size=SIZE)
    blocks.grow("a", 2 * SIZE)
    second = block_key(A, (2,) * SIZE)
    blocks.publish("a", 0, A)
    blocks.publish("a", 1, second)
    blocks.free("a")
    blocks.grow("b", SIZE)
    assert len(blocks.find([A, second])) == 2
    blocks.grow("b", 2 * SIZE)
    assert len(blocks.find([A, second])) == 1


def test_the_first_of_two_blocks_with_the_same_tokens_is_the_one_that_is_shared() -> None:
    blocks = BlockManager(num_blocks=2, block_size=SIZE)
    for name in "ab":
        blocks.grow(name, SIZE)
        blocks.publish(name, 0, A)
    assert tuple(blocks.find([A])) == blocks.owned_by("a")
    blocks.check_integrity()
    blocks.free("b")
    assert (blocks.num_free, blocks.num_cached) == (1, 0)


def test_integrity_check_finds_what_is_wrong_with_shared_blocks() -> None:
    def shared() -> BlockManager:
        blocks = BlockManager(num_blocks=2, block_size=SIZE)
        blocks.grow("a", SIZE)
        blocks.publish("a", 0, A)
        blocks.share("b", blocks.find([A]))
        return blocks

    miscounted = shared()
    miscounted._num_users[miscounted.owned_by("a")[0]] = 1
    with pytest.raises(AssertionError, match="not counted right"):
        miscounted.check_integrity()
    unnamed = shared()
    unnamed._cache = BlockManager(1, SIZE)._cache
    with pytest.raises(AssertionError, match="was not published"):
        unnamed.check_integrity()
    twice = shared()
    twice.share("b", twice.find([A]))
    with pytest.raises(AssertionError, match="the same KV block twice"):
        twice.check_integrity()
    free = shared()
    free._cache.add(B, free._free[0])
    with pytest.raises(AssertionError, match="free KV block is still published"):
        free.check_integrity()
    halved = shared()
    del halved._cache._blocks[A]
    with pytest.raises(AssertionError, match="do not name each other"):
        halved.check_integrity()


def test_a_key_stands_for_all_tokens_before() -> None:
    keys = {block_key(parent, tokens) for parent in (FIRST_KEY, A, B) for tokens in ((1, 2), (2, 1), (2**40, 1))}
    assert len(keys) == 9


# --- the scheduler


def test_a_later_request_goes_on_where_the_beginning_ends() -> None:
    simulation = world()
    simulation.add(request("first", range(10)))
    simulation.run()
    simulation.add(request("second", (*range(9), 40, 41)))
    assert shapes(simulation) == {"second": (8, 3)}
    assert simulation.cached == {"first": 0, "second": 8}
    stats = simulation.plan.stats()
    assert (stats.num_prefix_queries, stats.num_prefix_hits) == (21, 8)


def test_a_prompt_that_is_all_there_still_runs_its_last_token() -> None:
    simulation = world()
    for name in ("first", "second"):
        simulation.add(request(name, range(2 * SIZE)))
        simulation.run()
    assert simulation.cached["second"] == SIZE
    assert simulation.generated["first"] == simulation.generated["second"]


def test_the_output_is_shared_too() -> None:
    simulation = world()
    simulation.add(request("first", range(6), max_tokens=7))
    simulation.run()
    simulation.add(request("second", (*range(6), *simulation.generated["first"])))
    assert shapes(simulation) == {"second": (12, 1)}, "the last token was drawn, but not run"


def test_requests_that_come_together_compute_a_prompt_once() -> None:
    simulation = world()
    for name in "abc":
        simulation.add(request(name, range(10), max_tokens=3))
    simulation.add(request("other", range(20, 30)))
    assert shapes(simulation) == {"a": (0, 10), "other": (0, 10)}
    assert shapes(simulation) == {"a": (10, 1), "b": (8, 2), "c": (8, 2)}
    simulation.run()
    assert simulation.cached == {"a": 0, "b": 8, "c": 8, "other": 0}


def test_a_long_prompt_that_comes_twice_is_computed_once_chunk_by_chunk() -> None:
    simulation = world(max_num_batched_tokens=10)
    for name in "ab":
        simulation.add(request(name, range(30), max_tokens=2))
    assert [shapes(simulation) for _ in range(5)] == [
        {"a": (0, 10)},
        {"a": (10, 10)},
        {"a": (20, 10)},
        {"a": (30, 1), "b": (28, 2)},
        {"b": (30, 1)},
    ]


def test_requests_that_run_together_share_their_blocks() -> None:
    simulation = world(num_blocks=8)
    for name in "ab":
        simulation.add(request(name, range(17), max_tokens=8))
    for _ in range(3):
        simulation.step()
    stats = simulation.plan.stats()
    assert (stats.num_running, stats.num_free_blocks) == (2, 8 - 6)  # 4 in common, 1 each
    simulation.run()
    assert simulation.plan.stats().num_preemptions == 0


def test_equal_blocks_after_different_beginnings_are_not_mixed_up() -> None:
    simulation = world()
    requests = [
        request(name, (first,) * SIZE + (9,) * SIZE + (5,), max_tokens=3) for name, first in (("a", 1), ("b", 2))
    ]
    for wanted in requests:
        simulation.add(wanted)
        simulation.run()
        assert simulation.generated[wanted.request_id] == run_alone(wanted, 64)[0]
    assert simulation.cached == {"a": 0, "b": 0}


def test_a_preempted_request_gets_its_blocks_back() -> None:
    simulation = world(num_blocks=8)
    simulation.add(request("old", range(7), max_tokens=3))
    simulation.add(request("young", range(20, 34), max_tokens=6))
    simulation.step()
    simulation.plan._preempt(simulation.plan._running[-1])
    simulation.plan.check_integrity()
    assert shapes(simulation) == {"old": (7, 1), "young": (12, 3)}
    simulation.run()
    assert simulation.cached["young"] == 0, "it has computed its prompt itself"
    assert simulation.plan.stats().num_prefix_hits == 0


def test_kept_blocks_make_room_for_new_ones() -> None:
    simulation = world(num_blocks=5)
    simulation.add(request("first", range(16)))
    simulation.run()
    assert simulation.plan.stats().num_cached_blocks == 4
    simulation.add(request("second", range(20, 36)))
    assert shapes(simulation) == {"second": (0, 16)}
    assert simulation.plan.stats().num_cached_blocks == 5
    simulation.add(request("third", range(16)))
    assert shapes(simulation) == {"third": (4, 12)}, "of the first one its beginning was kept"


def test_kept_blocks_that_a_request_would_use_are_not_free_for_it() -> None:
    simulation = world(num_blocks=5)
    simulation.add(request("first", range(16)))
    simulation.run()
    simulation.add(request("runs", range(40, 41), max_tokens=4))
    simulation.step()
    # It would share all 4 that are left, and need one more.
    simulation.add(request("second", range(17)))
    assert shapes(simulation) == {"runs": (1, 1)}
    simulation.run()
    assert simulation.plan.stats().num_preemptions == 0
    assert simulation.cached["second"] > 0


def test_a_prompt_that_waits_for_anothers_blocks_keeps_its_claim_to_its_own() -> None:
    simulation = world(num_blocks=8)
    simulation.add(request("a", range(12), max_tokens=2))
    simulation.add(request("b", range(12), max_tokens=2))
    simulation.add(request("c", range(40, 48), max_tokens=2))
    assert shapes(simulation) == {"a": (0, 12)}
    assert simulation.plan.stats().num_waiting == 1


def test_a_prompt_in_the_middle_of_a_block_stays_with_its_own() -> None:
    simulation = world(max_num_batched_tokens=6)
    simulation.add(request("late", range(20), priority=1))
    simulation.step()
    simulation.add(request("early", range(20)))
    simulation.plan._running.insert(0, simulation.plan._waiting.pop())  # as if there had been room at once
    seen = [shapes(simulation) for _ in range(4)]
    assert seen == [{"early": (4, 6)}, {"early": (10, 6)}, {"early": (16, 4), "late": (6, 2)}, {"late": (16, 4)}]


def test_what_could_not_be_computed_is_not_kept() -> None:
    simulation = world()
    simulation.add(request("a", range(8)))
    batch = simulation.plan.schedule()
    assert batch is not None
    (output,) = simulation.plan.update(batch, {"a": ()})
    assert output.finish_reason is FinishReason.ERROR
    assert simulation.plan.stats().num_cached_blocks == 0
    simulation.plan.check_integrity()


def test_without_the_cache_everything_is_computed() -> None:
    simulation = world(prefix_cache=False)
    for name in "ab":
        simulation.add(request(name, range(10)))
    assert shapes(simulation) == {"a": (0, 10), "b": (0, 10)}
    stats = simulation.plan.stats()
    assert (stats.num_prefix_hits, stats.num_cached_blocks) == (0, 0)


def test_each_block_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[tuple[int, ...]] = []

    def count(parent: bytes, token_ids: list[int]) -> bytes:
        hashed.append(tuple(token_ids))
        return block_key(parent, token_ids)

    monkeypatch.setattr(sequence_module, "block_key", count)
    simulation = world(max_num_batched_tokens=7)
    simulation.add(request("a", range(30), max_tokens=20))
    simulation.run()
    assert len(hashed) == 49 // SIZE
