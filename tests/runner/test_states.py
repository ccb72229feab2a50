"""States of linear attention from step to step: each sequence finds its own, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch

from strata.config import SchedulerConfig
from strata.kernels.attention.batch import PagedBatch
from strata.request import GenerationRequest, SamplingParams
from strata.runner.decode import DecodeInputs
from strata.runner.graphs import StepGraphs
from strata.runner.inputs import build_inputs
from strata.runner.mixed import MixedInputs
from strata.runner.runner import Runner
from strata.runner.step import StepResult
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.scheduler.scheduler import Scheduler
from tests.models import tiny
from tests.runner import hybrid

BLOCKS_OF_ONE = hybrid.MAX_LEN // hybrid.BLOCK


def text(number: int, length: int) -> tuple[int, ...]:
    return tuple((31 * number + 7 * i + i * i) % hybrid.VOCAB for i in range(length))


def part(number: int, start: int, end: int, num_replayed: int = 0, drafts: tuple[int, ...] = ()) -> ScheduledSequence:
    """Of a sequence with blocks and a slot of its own. ``end``: of the tokens before its draft."""
    last = end + len(drafts)
    blocks = tuple(range(number * BLOCKS_OF_ONE, (number + 1) * BLOCKS_OF_ONE))[: -(-last // hybrid.BLOCK)]
    return ScheduledSequence(
        str(number),
        (*text(number, end)[start:], *drafts),
        start,
        blocks,
        samples=True,
        state_slot=3 - number,
        num_drafts=len(drafts),
        num_replayed=num_replayed,
    )


def alone(number: int, length: int) -> torch.Tensor:
    """Logits of all tokens of a sequence that runs in one piece."""
    return hybrid.runner().run_all(Batch((part(number, 0, length),)))


STEPS = [
    [(0, 0, 20)],
    [(0, 20, 21), (1, 0, 7)],
    [(0, 21, 22), (2, 0, 1), (1, 7, 30)],
    [(0, 22, 23), (1, 30, 31), (2, 1, 2)],
]


@pytest.mark.parametrize("reads_pages", [True, False])
def test_sequences_in_parts_and_together_get_what_each_gets_alone(reads_pages: bool) -> None:
    runner = hybrid.runner(reads_pages=reads_pages)
    expected = {number: alone(number, length) for number, length in ((0, 23), (1, 31), (2, 2))}
    for step in STEPS:
        found = runner.run_all(Batch(tuple(part(*span) for span in step)))
        wanted = torch.cat([expected[number][start:end] for number, start, end in step])
        assert tiny.relative(found, wanted) < 1e-5


def draft(number: int, start: int, num_right: int, num_wrong: int) -> tuple[int, ...]:
    """Of a sequence whose tokens before ``start`` are known."""
    right = text(number, start + num_right)[start:]
    return (*right, *((token_id + 1) % hybrid.VOCAB for token_id in text(number, 90)[:num_wrong]))


# Of each sequence: number, start, end without its draft, tokens that its state lacks, right and wrong ones of a draft.
DRAFTED = [
    [(0, 0, 20, 0, 0, 0), (2, 0, 1, 0, 2, 5)],
    [(0, 20, 21, 0, 3, 0), (1, 0, 7, 0, 0, 0), (2, 3, 4, 2, 0, 1)],
    [(0, 24, 25, 3, 1, 6), (1, 7, 8, 0, 0, 7), (2, 4, 5, 0, 0, 0)],
    [(0, 26, 27, 1, 0, 0), (1, 8, 40, 0, 0, 0), (2, 5, 6, 0, 7, 0)],
    [(0, 27, 28, 0, 0, 0), (1, 40, 41, 0, 2, 2), (2, 13, 14, 7, 7, 0)],
    [(0, 28, 29, 0, 0, 0), (1, 43, 44, 2, 0, 0), (2, 21, 22, 7, 0, 0)],
]


def drafted(step: list[tuple[int, int, int, int, int, int]]) -> tuple[Batch, torch.Tensor]:
    """The step, and the logits that its right tokens have in a sequence that runs in one piece; NaN for wrong ones."""
    parts, expected = [], []
    for number, start, end, num_replayed, num_right, num_wrong in step:
        parts.append(part(number, start, end, num_replayed, draft(number, end, num_right, num_wrong)))
        expected.append(alone(number, end + num_right)[start:])
        expected.append(torch.full((num_wrong, hybrid.VOCAB), torch.nan))
    return Batch(tuple(parts)), torch.cat(expected)


@pytest.mark.parametrize("reads_pages", [True, False])
def test_right_tokens_of_drafts_get_what_they_get_alone(reads_pages: bool) -> None:
    runner = hybrid.runner(reads_pages=reads_pages, drafts=True)
    for step in DRAFTED:
        batch, expected = drafted(step)
        right = expected.isfinite().all(1)
        assert tiny.relative(runner.run_all(batch)[right], expected[right]) < 1e-5


def test_right_tokens_of_drafts_get_it_in_graphs_too() -> None:
    runner = hybrid.runner(drafts=True)
    graphs = graphs_of(runner, (4,), (32, 64))
    for step in DRAFTED:
        batch, expected = drafted(step)
        result = graphs.run(batch)
        assert result is not None
        ends = list(accumulate(len(part.token_ids) for part in batch.sequences))
        rows = [
            row for part, end in zip(batch.sequences, ends, strict=True) for row in range(end - part.num_sampled, end)
        ]
        expected = expected[rows]
        right = expected.isfinite().all(1)
        assert tiny.relative(result.logits[right], expected[right]) < 1e-5


def test_a_slot_that_another_had_is_as_good_as_new() -> None:
    runner = hybrid.runner()
    assert runner.caches.states is not None
    for layer in runner.caches.states.layers:
        layer.conv.fill_(9)
        layer.recurrent.fill_(9)
    assert tiny.relative(runner.run_all(Batch((part(0, 0, 20),))), alone(0, 20)) < 1e-5


def test_the_slots_travel_with_the_other_integers() -> None:
    batch = Batch((part(0, 4, 5), part(2, 0, 3)))
    for reads_pages in (True, False):
        inputs = build_inputs(batch, hybrid.BLOCK, torch.device("cpu"), torch.float32, reads_pages=reads_pages)
        states = inputs.attention.states
        assert states is not None
        assert (states.tolist(), states.dtype) == ([3, 1], torch.int32)


def test_warm_up_leaves_all_states_but_the_spare_one_alone() -> None:
    runner = hybrid.runner()
    runner.warm_up(20, lambda *now: None)
    states = runner.caches.states
    assert states is not None
    for layer in states.layers:
        for tensor in (layer.conv, layer.recurrent):
            assert [bool(slot.any()) for slot in tensor] == [False] * 4 + [True]


def graphs_of(runner: Runner, sizes: tuple[int, ...], mixed: tuple[int, ...]) -> StepGraphs:
    """On the CPU a step is run again where a card replays it."""

    def capture(step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        result = step()

        def replay() -> None:
            again = step()
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                old.copy_(new)

        return replay, result

    plan, cpu = runner.plan, torch.device("cpu")
    lengths = (plan.max_model_len, plan.block_size, plan.num_blocks, plan.spare_state)
    drafts = plan.max_draft > 0
    made = StepGraphs(
        runner.model,
        runner.caches.layers,
        (DecodeInputs(max(sizes), 4, *lengths, cpu, drafts=drafts), sizes),
        (MixedInputs(max(mixed), 4, *lengths, cpu, drafts=drafts), mixed),
        capture,
    )
    made.capture()
    return made


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return (result.logits, result.best) if isinstance(result, StepResult) else (result,)


def test_graphs_give_what_any_other_step_gives_and_fill_up_with_the_spare_state() -> None:
    with_graphs, without = hybrid.runner(), hybrid.runner()
    graphs = graphs_of(with_graphs, (4,), (32, 64))
    for step in STEPS:
        batch = Batch(tuple(part(*span) for span in step))
        result = graphs.run(batch)
        assert result is not None
        assert tiny.relative(result.logits, without.run(batch).logits) < 1e-5
    ours, theirs = with_graphs.caches.states, without.caches.states
    assert ours is not None
    assert theirs is not None
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert tiny.relative(one.recurrent[:4], other.recurrent[:4]) < 1e-5
        assert tiny.relative(one.conv[:4], other.conv[:4]) < 1e-5
        assert one.recurrent[4].any(), "what fills up a step has the spare slot"


def test_rows_that_fill_up_a_decode_step_have_the_spare_state() -> None:
    inputs = DecodeInputs(4, 4, hybrid.MAX_LEN, hybrid.BLOCK, 24, 4, torch.device("cpu"))
    inputs.write(Batch((part(1, 5, 6), part(0, 2, 3))), 4)
    seen: PagedBatch = inputs.seen(4)
    assert seen.states is not None
    assert seen.states.tolist() == [2, 3, 4, 4]


def test_logits_behind_a_state_that_was_kept_are_those_of_the_whole_prompt() -> None:
    runner = hybrid.runner(num_snapshots=2)
    prompts = {name: (*text(0, 70), *text(number, 9)) for number, name in enumerate("abc", start=1)}
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=48),
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        max_model_len=runner.max_model_len,
        eos_token_ids=(),
        num_states=runner.num_states,
        num_snapshots=runner.num_snapshots,
    )
    starts: dict[str, list[int]] = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        scheduler.add(GenerationRequest(name, prompt, SamplingParams(max_tokens=4)))
        logits, drawn = [], list[int]()
        while scheduler.has_work:
            batch = scheduler.schedule()
            assert batch is not None
            starts[name] += [part.start for part in batch.sequences]
            result = runner.run(batch)
            if batch.sequences[0].samples:
                logits.append(result.logits)
                drawn.append(int(result.best[0]))
            scheduler.update(batch, {name: tuple(drawn[-1:])})
        blocks = tuple(range(BLOCKS_OF_ONE))
        whole = ScheduledSequence(name, (*prompt, *drawn[:-1]), 0, blocks, samples=True, state_slot=0)
        expected = hybrid.runner().run_all(Batch((whole,)))[len(prompt) - 1 :]
        assert tiny.relative(torch.cat(logits), expected) < 1e-5
    assert [found[0] for found in starts.values()] == [0, 64, 64]
    assert scheduler.stats().num_prefix_hits == 2 * 64
