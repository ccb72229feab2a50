"""Planning a step while the one before it runs: what is known then, and what has to wait."""

from __future__ import annotations

from typing import Any

import pytest

from strata.config import SchedulerConfig
from strata.request import FinishReason, GenerationRequest, SamplingParams
from strata.scheduler.batch import Batch
from strata.scheduler.scheduler import Scheduler
from tests.scheduler.fake_model import EOS
from tests.scheduler.simulation import Simulation

PROMPT = (5, 6, 7)


def plan(num_blocks: int = 16, **config: Any) -> Scheduler:
    return Scheduler(
        SchedulerConfig(**config), num_blocks=num_blocks, block_size=4, max_model_len=40, eos_token_ids=(EOS,)
    )


def request(name: str, max_tokens: int = 10, prompt: tuple[int, ...] = PROMPT) -> GenerationRequest:
    return GenerationRequest(name, prompt, SamplingParams(max_tokens=max_tokens))


def begun(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule()
    assert batch is not None
    return batch


def names(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [part.request_id for part in batch.sequences]


def test_a_step_of_tokens_that_are_not_known_yet() -> None:
    scheduler = plan()
    scheduler.add(request("a"))
    scheduler.add(request("b", prompt=(1, 2, 3, 4)))
    first = begun(scheduler)
    second = scheduler.schedule_ahead(first)
    assert second is not None
    assert [(part.token_ids, part.start, part.source) for part in second.sequences] == [((0,), 3, 0), ((0,), 4, 1)]
    assert [len(part.block_ids) for part in second.sequences] == [1, 2], "with room for the new token"
    assert second.num_decoding == 2
    scheduler.update(first, {"a": (9,), "b": (8,)})
    scheduler.check_integrity()
    third = scheduler.schedule_ahead(second)
    scheduler.update(second, {"a": (1,), "b": (2,)})
    assert names(third) == ["a", "b"]
    assert third is not None
    assert [part.start for part in third.sequences] == [4, 5]
    scheduler.check_integrity()


def test_a_sequence_at_its_limit_is_left_out() -> None:
    scheduler = plan()
    scheduler.add(request("last", max_tokens=1))
    scheduler.add(request("a"))
    scheduler.add(request("full", prompt=tuple(range(1, 40))))
    first = begun(scheduler)
    second = scheduler.schedule_ahead(first)
    assert names(second) == ["a"]
    assert second is not None
    assert second.sequences[0].source == 1, "the second of those that draw"


def test_a_token_drawn_in_vain_is_dropped_and_its_blocks_are_free() -> None:
    scheduler = plan()
    scheduler.add(request("a"))
    scheduler.add(request("b"))
    first = begun(scheduler)
    second = scheduler.schedule_ahead(first)
    ended, other = scheduler.update(first, {"a": (EOS,), "b": (9,)})
    assert (ended.finish_reason, other.finish_reason) == (FinishReason.STOP, None)
    assert second is not None
    assert scheduler.runs(second)
    scheduler.check_integrity()
    scheduler.add(request("a", max_tokens=1))  # the id once more
    (output,) = scheduler.update(second, {"a": (7,), "b": (8,)})
    assert output.request_id == "b"
    assert names(scheduler.schedule()) == ["b", "a"]


def test_a_step_of_requests_that_have_all_ended_is_none() -> None:
    scheduler = plan()
    scheduler.add(request("a"))
    first = begun(scheduler)
    second = scheduler.schedule_ahead(first)
    assert second is not None
    assert scheduler.abort("a")
    assert not scheduler.runs(second)
    assert scheduler.update(first, {"a": (5,)}) == scheduler.update(second, {"a": (5,)}) == ()
    assert scheduler.stats().num_free_blocks == 16


@pytest.mark.parametrize("free_slots", [0, 1])
def test_one_that_waits_is_let_in_before_anything_else(free_slots: int) -> None:
    scheduler = plan(max_num_seqs=2)
    for name in "ab"[free_slots:]:
        scheduler.add(request(name))
    first = begun(scheduler)
    scheduler.add(request("c"))
    assert (scheduler.schedule_ahead(first) is None) == bool(free_slots)


def test_the_end_of_one_lets_the_next_one_in_at_once() -> None:
    scheduler = plan(max_num_seqs=2)
    for name, max_tokens in (("a", 1), ("b", 9), ("c", 9)):
        scheduler.add(request(name, max_tokens))
    assert scheduler.schedule_ahead(begun(scheduler)) is None


def test_a_prompt_that_goes_on_is_not_passed_over() -> None:
    scheduler = plan(max_num_batched_tokens=16)
    scheduler.add(request("long", prompt=tuple(range(1, 25))))
    assert scheduler.schedule_ahead(begun(scheduler)) is None


@pytest.mark.parametrize("num_taken", [0, 1])
def test_without_a_free_block_somebody_has_to_give_way_first(num_taken: int) -> None:
    scheduler = plan(num_blocks=3)
    scheduler.add(request("a", max_tokens=6, prompt=(1, 2, 3, 4)))
    scheduler.add(request("b", max_tokens=6, prompt=(9, 9)))
    first = begun(scheduler)
    scheduler._cache.blocks.grow("somebody else", 4 * num_taken)
    assert (scheduler.schedule_ahead(first) is None) == bool(num_taken), "the third block is for a"


def test_most_steps_of_a_steady_batch_are_planned_ahead() -> None:
    world = Simulation(SchedulerConfig(max_num_seqs=4), ahead=True)
    for number in range(4):
        sampling = SamplingParams(max_tokens=30, ignore_eos=True)
        world.add(GenerationRequest(f"r{number}", (number + 1,), sampling))
    world.run()
    assert world.num_ahead == 29
