"""Slots for the states of linear attention: who has one, and from when on another may."""

from __future__ import annotations

import pytest

from strata.config import SchedulerConfig
from strata.request import GenerationRequest, SamplingParams
from strata.scheduler.batch import Batch
from strata.scheduler.scheduler import Scheduler
from strata.scheduler.states import StateSlots
from strata.scheduler.stats import WaitReason
from tests.scheduler.fake_model import EOS
from tests.scheduler.simulation import Simulation


def plan(num_states: int, num_blocks: int = 16, max_num_seqs: int = 4) -> Scheduler:
    return Scheduler(
        SchedulerConfig(max_num_seqs=max_num_seqs),
        num_blocks=num_blocks,
        block_size=4,
        max_model_len=40,
        eos_token_ids=(EOS,),
        num_states=num_states,
    )


def request(name: str, prompt: tuple[int, ...] = (5, 6, 7), max_tokens: int = 10) -> GenerationRequest:
    return GenerationRequest(name, prompt, SamplingParams(max_tokens=max_tokens))


def begun(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule()
    assert batch is not None
    return batch


def slots(batch: Batch | None) -> dict[str, int | None]:
    assert batch is not None
    return {part.request_id: part.state_slot for part in batch.sequences}


def test_a_slot_is_of_one_request_from_its_first_step_to_its_end() -> None:
    scheduler = plan(num_states=4)
    scheduler.add(request("a"))
    scheduler.add(request("b"))
    first = begun(scheduler)
    assert sorted(slots(first).values()) == [0, 1]  # type: ignore[type-var]
    scheduler.update(first, {"a": (1,), "b": (2,)})
    second = begun(scheduler)
    assert slots(second) == slots(first)
    assert scheduler.stats().num_used_states == 2
    scheduler.update(second, {"a": (EOS,), "b": (3,)})
    scheduler.check_integrity()
    assert scheduler.stats().num_used_states == 1
    assert scheduler.abort("b")
    assert (scheduler.stats().num_used_states, scheduler.stats().num_total_states) == (0, 4)


def test_no_more_are_let_in_than_there_are_slots() -> None:
    scheduler = plan(num_states=2)
    for name in "abc":
        scheduler.add(request(name))
    assert list(slots(begun(scheduler))) == ["a", "b"]
    assert scheduler.stats().waiting_for is WaitReason.MAX_NUM_SEQS


def test_a_model_without_states_has_no_slots() -> None:
    scheduler = plan(num_states=0)
    scheduler.add(request("a"))
    assert slots(begun(scheduler)) == {"a": None}
    assert (scheduler.stats().num_used_states, scheduler.stats().num_total_states) == (0, 0)


@pytest.mark.parametrize("how", ["ends", "is aborted"])
def test_a_slot_that_a_step_ahead_still_writes_is_given_to_one_that_begins_after_it(how: str) -> None:
    scheduler = plan(num_states=1)
    scheduler.add(request("a"))
    first = begun(scheduler)
    ahead = scheduler.schedule_ahead(first)  # runs already
    assert slots(ahead) == {"a": 0}
    assert ahead is not None
    if how == "is aborted":
        scheduler.abort("a")
    scheduler.update(first, {"a": (EOS,)})
    scheduler.add(request("b", prompt=(5, 6, 7, 8)))
    assert scheduler.update(ahead, {"a": (9,)}) == ()
    (part,) = begun(scheduler).sequences
    assert (part.request_id, part.state_slot, part.start) == ("b", 0, 0)


def test_a_preempted_request_gives_its_slot_up_and_begins_anew() -> None:
    world = Simulation(SchedulerConfig(max_num_seqs=2), num_blocks=6, num_states=2)
    for name in "ab":
        world.add(GenerationRequest(name, (1, 2, 3), SamplingParams(max_tokens=18, ignore_eos=True)))
    starts = []
    while not world.done:
        starts += [part.start for part in world.step().sequences if part.request_id == "b"]
    assert world.plan.stats().num_preemptions > 0
    assert starts.count(0) == 1 + world.plan.stats().num_preemptions


def test_computed_blocks_are_not_shared_since_nobody_has_the_state_behind_them() -> None:
    world = Simulation(SchedulerConfig(), num_states=16)
    for name in "ab":
        world.add(GenerationRequest(name, tuple(range(1, 20)), SamplingParams(max_tokens=2, ignore_eos=True)))
        world.run()
    assert world.plan.stats().num_prefix_hits == world.plan.stats().num_prefix_queries == 0


def test_integrity_check_finds_a_leak_and_a_double() -> None:
    leaking, doubled = StateSlots(2), StateSlots(2)
    leaking._free.pop()
    doubled._free.append(0)
    for slots in (leaking, doubled):
        with pytest.raises(AssertionError, match="2 slots for states exist"):
            slots.check_integrity()
