"""States that are kept, so that requests of a model with linear attention pass over what others computed."""

from __future__ import annotations

from typing import Any

import pytest

from strata.config import SchedulerConfig
from strata.request import GenerationRequest, SamplingParams
from strata.scheduler.batch import Batch
from strata.scheduler.kv import MIN_SNAPSHOT_BLOCKS
from strata.scheduler.snapshots import Snapshots
from tests.scheduler.fake_model import run_alone
from tests.scheduler.simulation import Simulation

SIZE, MAX_LEN, NUM_STATES = 4, 100, 4


def world(num_snapshots: int = 8, num_blocks: int = 64, **config: Any) -> Simulation:
    limits = SchedulerConfig(max_num_seqs=NUM_STATES, **config)
    return Simulation(
        limits,
        num_blocks=num_blocks,
        block_size=SIZE,
        max_model_len=MAX_LEN,
        num_states=NUM_STATES,
        num_snapshots=num_snapshots,
    )


def request(name: str, prompt: tuple[int, ...], max_tokens: int = 2) -> GenerationRequest:
    return GenerationRequest(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 17 + 7 * place) % 49 + 1 for place in range(length))


def ask(simulation: Simulation, name: str, prompt: tuple[int, ...], max_tokens: int = 2) -> list[Batch]:
    """Its steps; the answer is that of the request alone."""
    wanted = request(name, prompt, max_tokens)
    simulation.add(wanted)
    steps = []
    while not simulation.done:
        steps.append(simulation.step())
    assert simulation.generated[name] == run_alone(wanted, MAX_LEN)[0]
    return steps


def spans(steps: list[Batch]) -> list[tuple[int, int]]:
    return [(part.start, part.end) for step in steps for part in step.sequences]


def test_a_prompt_s_state_is_kept_at_its_last_border() -> None:
    simulation = world()
    steps = ask(simulation, "a", text(30))
    assert spans(steps) == [(0, 28), (28, 30), (30, 31)]
    (save,) = steps[0].saves
    assert save == (steps[0].sequences[0].state_slot, NUM_STATES)
    assert [step.restores for step in steps] == [()] * 3
    assert simulation.plan.stats().num_snapshots == 1


@pytest.mark.parametrize(("length", "kept"), [(MIN_SNAPSHOT_BLOCKS * SIZE, 0), (MIN_SNAPSHOT_BLOCKS * SIZE + 1, 1)])
def test_short_prompts_are_not_worth_it(length: int, kept: int) -> None:
    simulation = world()
    ask(simulation, "a", text(length))
    assert simulation.plan.stats().num_snapshots == kept


def test_who_begins_alike_goes_on_from_the_state() -> None:
    simulation = world()
    ask(simulation, "a", text(30))
    steps = ask(simulation, "b", (*text(30), *text(9, seed=1)))
    assert spans(steps)[0] == (28, 39)
    assert steps[0].restores == ((NUM_STATES, steps[0].sequences[0].state_slot),)
    assert simulation.cached["b"] == simulation.plan.stats().num_prefix_hits == 28


def test_blocks_without_a_state_behind_them_are_of_no_use() -> None:
    simulation = world(num_snapshots=1)
    ask(simulation, "a", text(30))
    ask(simulation, "other", text(30, seed=5))
    assert spans(ask(simulation, "b", (*text(30), 9)))[0][0] == 0
    assert simulation.plan.stats().num_prefix_hits == 0


def test_where_prompts_part_a_state_is_kept_for_the_third() -> None:
    simulation = world()
    common = text(40)
    ask(simulation, "a", (*common, *text(20, seed=1)))
    assert spans(ask(simulation, "b", (*common, *text(20, seed=2))))[:2] == [(0, 40), (40, 56)]
    assert spans(ask(simulation, "c", (*common, *text(20, seed=3))))[0][0] == 40


def test_a_conversation_goes_on_from_its_last_question() -> None:
    simulation = world()
    ask(simulation, "a", text(30), max_tokens=20)
    history = (*text(30), *simulation.generated["a"])
    steps = ask(simulation, "b", (*history, *text(20, seed=4)))
    assert spans(steps)[:2] == [(28, 48), (48, 68)], "the state behind the answer's last block is kept, too"
    assert spans(ask(simulation, "c", (*history, *text(20, seed=5))))[0][0] == 48


def test_prompts_that_come_together_are_computed_once() -> None:
    simulation = world()
    for name in "abc":
        simulation.add(request(name, text(30)))
    first, second = simulation.step(), simulation.step()
    assert [part.request_id for part in first.sequences] == ["a"]
    assert {part.request_id: part.start for part in second.sequences} == {"a": 28, "b": 28, "c": 28}
    simulation.run()
    assert len({tuple(tokens) for tokens in simulation.generated.values()}) == 1


def test_a_prompt_in_chunks_keeps_its_state_at_the_border_alone() -> None:
    simulation = world(max_num_batched_tokens=12)
    steps = ask(simulation, "a", text(30))
    assert spans(steps)[:4] == [(0, 12), (12, 24), (24, 28), (28, 30)]
    assert [len(step.saves) for step in steps] == [0, 0, 1, 0, 0]


def test_the_state_used_longest_ago_makes_room() -> None:
    simulation = world(num_snapshots=2)
    for seed in (1, 2):
        ask(simulation, f"first {seed}", text(30, seed))
    ask(simulation, "again", text(30, seed=1))
    ask(simulation, "third", text(30, seed=3))
    assert spans(ask(simulation, "kept", text(30, seed=1)))[0][0] == 28
    assert spans(ask(simulation, "gone", text(30, seed=2)))[0][0] == 0


def test_a_block_that_goes_takes_its_state_along() -> None:
    simulation = world(num_blocks=10)
    ask(simulation, "a", text(30))
    ask(simulation, "b", text(13, seed=1))
    simulation.plan.check_integrity()
    assert simulation.plan.stats().num_snapshots == 0


def test_a_state_that_nobody_waits_for_any_more_gives_its_slot_back() -> None:
    simulation = world(num_snapshots=1)
    simulation.add(request("a", text(30)))
    batch = simulation.plan.schedule()
    assert batch is not None
    assert len(batch.saves) == 1
    simulation.abort("a")
    assert simulation.plan.update(batch, {}) == ()
    assert simulation.plan.stats().num_snapshots == 0
    assert len(ask(simulation, "b", text(30))[0].saves) == 1


def test_a_preempted_request_goes_on_from_its_state() -> None:
    simulation = world(num_blocks=14)
    for seed, (name, max_tokens) in enumerate((("a", 14), ("b", 25))):
        simulation.add(request(name, text(22, seed), max_tokens))
    starts = []
    while not simulation.done:
        starts += [part.start for part in simulation.step().sequences if part.request_id == "b"]
    assert simulation.plan.stats().num_preemptions > 0
    assert (starts.count(0), starts.count(20)) == (1, 2)
    for name, wanted in simulation.requests.items():
        assert simulation.generated[name] == run_alone(wanted, MAX_LEN)[0]


def test_integrity_check_finds_a_leak_and_a_double() -> None:
    leaking, doubled = Snapshots(4, 2), Snapshots(4, 2)
    leaking._free.pop()
    doubled._free.append(4)
    for snapshots in (leaking, doubled):
        with pytest.raises(AssertionError, match="2 slots for snapshots exist"):
            snapshots.check_integrity()


def test_of_two_steps_that_end_with_the_same_state_one_is_kept() -> None:
    snapshots = Snapshots(0, 2)
    assert {snapshots.reserve(name, b"key") for name in "ab"} == {0, 1}
    assert snapshots.reserve("c", b"other") is None, "all are to be filled"
    for name in "abc":
        snapshots.keep(name)
    assert snapshots.num_kept == 1
    snapshots.check_integrity()
