"""Drafts in steps: what they may take, and what is left of those that were wrong."""

from __future__ import annotations

from typing import Any

import pytest

from strata.config import SchedulerConfig
from strata.request import FinishReason, GenerationRequest, SamplingParams
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.scheduler.drafts import LookupDrafter
from strata.scheduler.scheduler import Scheduler
from strata.scheduler.sequence import Sequence
from tests.scheduler.fake_model import EOS, run_alone
from tests.scheduler.oracle import Oracle
from tests.scheduler.simulation import Simulation

PROMPT = (5, 6, 7)


class Fixed(Oracle):
    """The same draft for everybody."""

    def __init__(self, *draft: int) -> None:
        super().__init__(num_right=1)
        self.draft = draft

    def _draft(self, sequence: Sequence) -> tuple[int, ...]:
        return self.draft


def plan(drafter: Any, num_blocks: int = 16, num_states: int = 0, **config: Any) -> Scheduler:
    return Scheduler(
        SchedulerConfig(**{"speculative": "lookup", **config}),
        num_blocks=num_blocks,
        block_size=4,
        max_model_len=40,
        eos_token_ids=(EOS,),
        num_states=num_states,
        drafter=drafter,
    )


def request(name: str = "a", prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(name, prompt, SamplingParams(**{"max_tokens": 20, **sampling}))


def begun(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule()
    assert batch is not None
    return batch


def decoding(drafter: Any, *requests: GenerationRequest, first: int = 9, **settings: Any) -> tuple[Scheduler, Batch]:
    """The first step with drafts."""
    scheduler = plan(drafter, **settings)
    for one in requests or (request(),):
        scheduler.add(one)
    batch = begun(scheduler)
    assert batch.num_drafts == 0, "prompts run alone"
    scheduler.update(batch, {part.request_id: (first,) for part in batch.sequences})
    return scheduler, begun(scheduler)


def only(batch: Batch) -> ScheduledSequence:
    (part,) = batch.sequences
    return part


def test_a_draft_runs_behind_the_newest_token() -> None:
    scheduler, batch = decoding(Fixed(1, 2, 3))
    part = only(batch)
    assert (part.token_ids, part.start, part.drafts, part.num_sampled) == ((9, 1, 2, 3), 3, (1, 2, 3), 4)
    assert len(part.block_ids) == 2
    assert (batch.num_tokens, batch.num_decoding, batch.num_drafts) == (4, 1, 3)
    (output,) = scheduler.update(batch, {"a": (1, 2, 8)})
    assert (output.token_ids, output.finish_reason) == ((1, 2, 8), None)
    scheduler.check_integrity()
    stats = scheduler.stats()
    assert (stats.num_drafted, stats.num_accepted) == (3, 2)
    part = only(begun(scheduler))
    assert (part.token_ids, part.start) == ((8, 1, 2, 3), 6)


def test_blocks_of_wrong_tokens_are_given_back() -> None:
    scheduler, batch = decoding(Fixed(1, 2, 3))
    assert scheduler.stats().num_used_blocks == 2
    scheduler.update(batch, {"a": (8,)})
    assert scheduler.stats().num_used_blocks == 1
    scheduler.check_integrity()


@pytest.mark.parametrize(
    ("sampling", "drawn", "kept", "reason"),
    [
        pytest.param({}, (1, EOS, 3), (1, EOS), FinishReason.STOP, id="the end of the sequence"),
        pytest.param({"stop_token_ids": (1,)}, (1,), (1,), FinishReason.STOP, id="a stop token"),
        pytest.param({"ignore_eos": True}, (1, EOS, 3), (1, EOS, 3), None, id="an end that is ignored"),
        pytest.param({"max_tokens": 3}, (1, 4), (1, 4), FinishReason.LENGTH, id="all that was asked for"),
    ],
)
def test_what_is_drawn_behind_an_end_is_dropped(
    sampling: dict[str, Any], drawn: tuple[int, ...], kept: tuple[int, ...], reason: FinishReason | None
) -> None:
    scheduler, batch = decoding(Fixed(1, 4, 5, 6), request(**sampling))
    (output,) = scheduler.update(batch, {"a": drawn})
    assert (output.token_ids, output.finish_reason) == (kept, reason)
    scheduler.check_integrity()
    assert scheduler.has_work == (reason is None)
    if reason is not None:
        assert scheduler.stats().num_used_blocks == 0


@pytest.mark.parametrize(
    ("sampling", "draft"),
    [
        pytest.param({"max_tokens": 4}, (1, 2), id="tokens that are left, one of which is drawn"),
        pytest.param({"max_tokens": 2}, (), id="no more than one is left"),
        pytest.param({"stop_token_ids": (2,)}, (1,), id="a stop token"),
    ],
)
def test_drafts_are_cut_where_they_cannot_count(sampling: dict[str, Any], draft: tuple[int, ...]) -> None:
    _, batch = decoding(Fixed(1, 2, 3), request(**sampling))
    assert only(batch).drafts == draft


def test_drafts_end_before_the_model_s_length() -> None:
    _, batch = decoding(Fixed(1, 2, 3), request(prompt=tuple(range(1, 37))))
    assert only(batch).end == 39, "the token that is drawn last has no place in the cache"


def test_a_step_samples_no_more_rows_than_memory_was_planned_for() -> None:
    requests = [request(name, prompt=(ord(name),)) for name in "abcd"]
    _, batch = decoding(Fixed(1, 2, 3), *requests, max_num_seqs=4)
    assert sum(part.num_sampled for part in batch.sequences) == 8
    _, batch = decoding(Fixed(1, 2, 3), *requests, max_num_seqs=4, speculative="off")
    assert batch.num_drafts == 0


def test_nobody_gives_way_to_a_draft() -> None:
    requests = [request(name, prompt=(ord(name), 1, 2), max_tokens=8) for name in "ab"]
    scheduler, batch = decoding(Fixed(1, 2, 3), *requests, num_blocks=3)
    assert [part.num_drafts for part in batch.sequences] == [3, 0]
    assert scheduler.stats().num_preemptions == 0
    scheduler.update(batch, {"a": (8,), "b": (8,)})
    scheduler.check_integrity()


def test_a_step_with_a_prompt_has_no_drafts() -> None:
    scheduler, batch = decoding(Fixed(1, 2, 3))
    scheduler.update(batch, {"a": (8,)})
    scheduler.add(request("b"))
    assert begun(scheduler).num_drafts == 0


@pytest.mark.parametrize(
    ("num_states", "drawn", "replayed"),
    [
        pytest.param(2, (8,), 0, id="none was right"),
        pytest.param(2, (1, 2, 8), 2, id="some were right"),
        pytest.param(2, (1, 2, 3, 8), 3, id="all were right"),
        pytest.param(0, (1, 2, 8), 0, id="a model without states"),
    ],
)
def test_the_next_step_is_told_which_tokens_the_state_lacks(
    num_states: int, drawn: tuple[int, ...], replayed: int
) -> None:
    scheduler, batch = decoding(Fixed(1, 2, 3), num_states=num_states)
    assert (only(batch).num_drafts, only(batch).num_replayed) == (3, 0)
    scheduler.update(batch, {"a": drawn})
    scheduler.check_integrity()
    batch = begun(scheduler)
    assert (only(batch).num_drafts, only(batch).num_replayed) == (3, replayed)
    scheduler.update(batch, {"a": (8,)})
    scheduler._drafter = Oracle(num_right=0)
    batch = begun(scheduler)
    assert only(batch).num_replayed == 0, "it is taken in once"


def test_a_token_beside_a_prompt_and_one_ahead_find_the_state_where_it_is() -> None:
    scheduler, batch = decoding(Fixed(1, 2, 3), num_states=2)
    scheduler.update(batch, {"a": (1, 2, 8)})
    scheduler.add(request("b"))
    scheduler._drafter = Oracle(num_right=0)
    batch = begun(scheduler)
    assert [(part.num_drafts, part.num_replayed) for part in batch.sequences] == [(0, 2), (0, 0)]
    ahead = scheduler.schedule_ahead(batch)
    assert ahead is not None
    assert [part.num_replayed for part in ahead.sequences] == [0, 0]


def test_who_gives_way_begins_with_a_state_that_lacks_nothing() -> None:
    scheduler, batch = decoding(Fixed(1, 2, 3), num_states=2)
    scheduler.update(batch, {"a": (1, 2, 8)})
    scheduler._preempt(scheduler._running[0])
    scheduler.check_integrity()
    part = only(begun(scheduler))
    assert (part.start, part.num_replayed) == (0, 0)


def test_no_step_is_planned_ahead_where_drafts_come() -> None:
    scheduler, batch = decoding(Fixed(1, 2, 3))
    assert scheduler.schedule_ahead(batch) is None, "how many tokens this one gives is not known"
    scheduler.update(batch, {"a": (8,)})
    without = Oracle(num_right=0)
    scheduler._drafter = without
    batch = begun(scheduler)
    assert scheduler.schedule_ahead(batch) is not None
    scheduler._drafter = Fixed(1)
    assert scheduler.schedule_ahead(batch) is None, "the next one may have some"


def test_only_blocks_of_right_tokens_are_shared() -> None:
    world = Simulation(SchedulerConfig(speculative="lookup"), drafter=Oracle(num_right=2, num_wrong=5))
    wanted = request("a", ignore_eos=True)
    world.add(wanted)
    world.run()
    history = (*PROMPT, *world.generated["a"])
    world.add(request("b", prompt=(*history, 3), ignore_eos=True))
    world.run()
    assert world.cached["b"] == (len(history) - 1) // 4 * 4
    assert world.generated["a"] == run_alone(wanted, 40)[0]


def test_right_drafts_need_fewer_steps() -> None:
    steps = {}
    for num_right in (0, 3):
        world = Simulation(SchedulerConfig(speculative="lookup"), drafter=Oracle(num_right=num_right))
        world.add(request(ignore_eos=True, max_tokens=33))
        steps[num_right] = 0
        while not world.done:
            world.step()
            steps[num_right] += 1
    assert steps == {0: 33, 3: 9}


def test_the_drafter_learns_of_steps_without_prompts() -> None:
    drafter = Oracle(num_right=3)
    world = Simulation(SchedulerConfig(speculative="lookup"), drafter=drafter)
    world.add(request(ignore_eos=True, max_tokens=9))
    world.run()
    assert drafter.records == [4, 4]


def sequence(*token_ids: int) -> Sequence:
    return Sequence(request(prompt=token_ids), (0.0, 1), 0.0, 4)


def test_lookup_drafts_what_followed_and_learns_from_what_comes() -> None:
    drafter, text = LookupDrafter(), sequence(1, 2, 3, 4, 5, 1, 2)
    for num_tokens in (1, 2, 4, 8):
        drafter.record(num_tokens, 1.0)
    assert drafter.drafts({text: 4}, 100) == {text: (3, 4, 5, 1)}
    assert drafter.drafts({text: 100}, 2) == {text: (3, 4)}
    assert drafter.drafts({text: 0}, 100) == {}
    assert drafter.wants([text], 100)
    for token_id in range(20, 40):  # what it says is always wrong
        text.token_ids += [token_id, 1, 2]
        drafter.wants([text], 100)
    assert not drafter.wants([text], 100)
    assert drafter.drafts({text: 100}, 100) == {}
    drafter.forget(text)
    assert drafter.drafts({text: 100}, 100) != {}


def test_lookup_has_no_draft_for_a_text_without_repetition() -> None:
    drafter, text = LookupDrafter(), sequence(*range(1, 30))
    assert not drafter.wants([text], 100)
    assert drafter.drafts({text: 100}, 100) == {}


def test_lookup_drafts_for_one_beside_another_that_has_none() -> None:
    drafter, one = LookupDrafter(), sequence(1, 2, 3, 1, 2)
    other = Sequence(request("b", prompt=(7, 8, 9)), (0.0, 2), 0.0, 4)
    assert drafter.drafts({one: 2, other: 2}, 100) == {one: (3, 1)}
