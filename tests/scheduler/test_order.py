"""Priorities, fairness, deadlines: who goes first, and until when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.config import SchedulerConfig
from strata.request import FinishReason, GenerationRequest, SamplingParams
from strata.scheduler.scheduler import MAX_PRIORITY, PRIORITY_SECONDS
from strata.scheduler.stats import WaitReason
from tests.scheduler.simulation import Simulation


def world(num_blocks: int = 64, max_num_seqs: int = 1, max_num_batched_tokens: int = 32) -> Simulation:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_waiting=1000,
        decode_latency_seconds=None,
    )
    return Simulation(config, num_blocks=num_blocks, block_size=4, max_model_len=64)


def request(
    name: str, *, priority: int = 0, timeout: float | None = None, num_prompt: int = 4, max_tokens: int = 4
) -> GenerationRequest:
    first = 1000 * sum(name.encode())
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return GenerationRequest(name, tuple(range(first, first + num_prompt)), sampling, priority, timeout)


def ends(simulation: Simulation) -> list[str]:
    simulation.run()
    return list(simulation.ended)


# --- priorities


def test_smaller_numbers_run_first_and_equals_in_order_of_arrival() -> None:
    simulation = world()
    for name, priority in (("a", 1), ("b", 0), ("c", -5), ("d", 0), ("e", 1)):
        simulation.add(request(name, priority=priority))
    assert ends(simulation) == ["c", "b", "d", "a", "e"]


def test_a_running_request_is_not_stopped_for_a_better_one_while_there_are_blocks() -> None:
    simulation = world()
    simulation.add(request("low", priority=5))
    simulation.step()
    simulation.add(request("high"))
    assert ends(simulation) == ["low", "high"]
    assert simulation.plan.stats().num_preemptions == 0


def test_blocks_are_taken_from_the_lowest_priority() -> None:
    simulation = world(num_blocks=8, max_num_seqs=2)
    simulation.add(request("low", priority=1, num_prompt=12, max_tokens=12))
    simulation.step()
    simulation.add(request("high", num_prompt=8, max_tokens=16))
    assert ends(simulation) == ["high", "low"]
    assert simulation.plan.stats().num_preemptions > 0


def test_a_preempted_request_waits_in_its_place() -> None:
    simulation = world(num_blocks=6, max_num_seqs=2)
    simulation.add(request("old", num_prompt=7, max_tokens=14))
    simulation.add(request("young", num_prompt=7, max_tokens=14))
    simulation.add(request("third", max_tokens=20))
    assert ends(simulation) == ["old", "young", "third"]
    assert simulation.plan.stats().num_preemptions > 0


def test_priority_decides_who_gets_the_budget() -> None:
    simulation = world(max_num_seqs=3, max_num_batched_tokens=8)
    simulation.add(request("low", priority=1, num_prompt=24))
    simulation.step()
    simulation.add(request("high", num_prompt=24))
    # "high" is let in with what "low" leaves of the first step: nothing. From then on it would come first.
    assert [part.request_id for part in simulation.step().sequences] == ["low"]
    assert ends(simulation)[0] == "low"


def test_a_priority_beyond_the_last_level_is_the_last_level() -> None:
    simulation = world()
    simulation.add(request("first", priority=10**9))
    simulation.now += 1
    simulation.add(request("second", priority=MAX_PRIORITY))
    simulation.add(request("third", priority=-(10**9)))
    assert ends(simulation) == ["third", "first", "second"]


# --- fairness


@pytest.mark.parametrize("gap", [1, 3])
def test_a_low_priority_is_passed_for_as_long_as_stated_and_no_longer(gap: int) -> None:
    """Better requests come without end, more than can be served: one waits at all times."""
    simulation = world()
    arrived = simulation.now
    simulation.add(request("better0"))
    simulation.add(request("low", priority=gap))
    number = 0
    while "low" not in simulation.generated or not simulation.generated["low"]:
        assert simulation.now < arrived + 10 * gap * PRIORITY_SECONDS, "it starves"
        while simulation.plan.stats().num_waiting < 2:
            number += 1
            simulation.add(request(f"better{number}"))
        simulation.step()
        simulation.now += PRIORITY_SECONDS / 8
    # All that came in its first ``gap * PRIORITY_SECONDS`` went first; with one slot, one of them may still run then.
    passed = simulation.now - arrived
    assert gap * PRIORITY_SECONDS <= passed <= (gap + 2) * PRIORITY_SECONDS


def test_a_request_without_room_is_not_passed_by_small_ones_for_ever() -> None:
    simulation = world(num_blocks=8, max_num_seqs=4)
    simulation.add(request("runs", num_prompt=12, max_tokens=8))
    simulation.step()
    simulation.add(request("big", num_prompt=28))
    for number in range(20):
        simulation.add(request(f"small{number}", num_prompt=1, max_tokens=1))
    assert ends(simulation)[:2] == ["runs", "big"]


def test_a_prompt_takes_the_blocks_that_decoding_leaves_and_then_waits() -> None:
    simulation = world(num_blocks=9, max_num_seqs=2, max_num_batched_tokens=11)
    simulation.add(request("decodes", num_prompt=11, max_tokens=8))
    simulation.step()
    simulation.plan._chunk.limit = 5
    simulation.add(request("prompt", num_prompt=20))
    chunks: list[tuple[int, int]] = []
    while not simulation.done:
        prompts = (part for part in simulation.step().sequences if part.request_id == "prompt" and part.start < 20)
        chunks.extend((part.start, len(part.token_ids)) for part in prompts)
    assert chunks == [(0, 5), (5, 5), (10, 5), (15, 1), (16, 4)]
    assert simulation.plan.stats().num_preemptions == 0


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_num_seqs": 1}, WaitReason.MAX_NUM_SEQS),
        ({"max_num_batched_tokens": 8}, WaitReason.PREFILL_BUDGET),
        ({"num_blocks": 4}, WaitReason.KV_BLOCKS),
        ({}, None),
    ],
)
def test_what_the_first_waiting_request_lacks(limits: dict[str, int], reason: WaitReason | None) -> None:
    simulation = world(**({"max_num_seqs": 2} | limits))
    assert simulation.plan.stats().waiting_for is None
    simulation.add(request("a", num_prompt=8))
    simulation.add(request("b", num_prompt=8))
    simulation.step()
    assert simulation.plan.stats().waiting_for is reason
    simulation.run()
    assert simulation.plan.stats().waiting_for is None


# --- deadlines


def test_time_runs_while_a_request_waits() -> None:
    simulation = world()
    simulation.add(request("runs", max_tokens=30))
    simulation.add(request("waits", timeout=0.05))
    while "waits" not in simulation.ended:
        simulation.step()
    assert simulation.ended == {"waits": FinishReason.TIMEOUT}
    assert simulation.generated["waits"] == []


def test_a_running_request_ends_with_what_it_has() -> None:
    simulation = world()
    simulation.add(request("a", timeout=0.05, max_tokens=50))
    simulation.run()
    assert simulation.ended == {"a": FinishReason.TIMEOUT}
    assert 1 <= len(simulation.generated["a"]) < 50
    stats = simulation.plan.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


def test_a_long_prompt_ends_in_the_middle() -> None:
    simulation = world(max_num_batched_tokens=4)
    simulation.add(request("a", timeout=0.03, num_prompt=40))
    simulation.run()
    assert (simulation.ended, simulation.generated) == ({"a": FinishReason.TIMEOUT}, {"a": []})


def test_an_answer_that_is_complete_in_time_says_so() -> None:
    simulation = world()
    simulation.add(request("a", timeout=0.001, max_tokens=1))
    simulation.run()
    assert simulation.ended == {"a": FinishReason.LENGTH}
    simulation.add(replace(request("b", max_tokens=4), timeout_seconds=1e9))
    simulation.run()
    assert simulation.ended["b"] is FinishReason.LENGTH
