"""Steps at fixed addresses: the same as any other step, whatever the sizes that were prepared.

On the CPU a step is run again where a card replays it; the inputs, and what is done with them, are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch

from strata.memory.kv import KVPool
from strata.models import registry
from strata.models.decoder import Decoder
from strata.plan.capture import capture_sizes, mixed_sizes
from strata.runner.decode import DecodeInputs
from strata.runner.graphs import StepGraphs
from strata.runner.inputs import build_inputs
from strata.runner.mixed import MixedInputs
from strata.runner.step import StepResult
from strata.scheduler.batch import Batch, ScheduledSequence
from tests.models import tiny
from tests.runner.paged_kernels import PagedKernels

BLOCK, NUM_BLOCKS, MAX_LEN = 4, 40, 64
TOLERANCE = 1e-5  # a product over more rows adds up in another order


class World:
    """A tiny model with two pools: one is decoded with graphs, the other without."""

    def __init__(self, sizes: tuple[int, ...], mixed: tuple[int, ...] = ()) -> None:
        hf = tiny.hf_llama(num_hidden_layers=2)
        config = tiny.model_config(hf)
        self.model: Decoder = registry.build(config, tiny.checkpoint(hf), PagedKernels(), MAX_LEN)
        self.pools = [
            KVPool(2, NUM_BLOCKS + 1, BLOCK, config.num_kv_heads, config.head_dim, torch.float32, torch.device("cpu"))
            for _ in range(2)
        ]
        lengths, cpu = (MAX_LEN, BLOCK, NUM_BLOCKS, None), torch.device("cpu")
        decode = DecodeInputs(max(sizes), 6, *lengths, cpu), sizes
        prompts = (MixedInputs(max(mixed), 6, *lengths, cpu), mixed) if mixed else None
        self.captured = 0
        self.graphs = StepGraphs(self.model, self.pools[0].layers, decode, prompts, self.capture)

    def capture(self, step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.captured += 1
        result = step()

        def replay() -> None:
            again = step()
            if isinstance(result, StepResult):
                result.logits.copy_(again.logits)
                result.best.copy_(again.best)
            else:
                result.copy_(again)

        return replay, result

    def run(self, batch: Batch, feed: torch.Tensor | None = None) -> StepResult:
        result = self.graphs.run(batch, feed)
        assert result is not None, "no graph is large enough"
        return result

    def eager(self, batch: Batch, pool: int = 1, feed: torch.Tensor | None = None) -> torch.Tensor:
        inputs = build_inputs(batch, BLOCK, torch.device("cpu"), torch.float32, reads_pages=True, feed=feed)
        hidden = self.model.forward(inputs.token_ids, inputs.attention, self.pools[pool].layers)
        return self.model.logits(hidden)

    def prefill(self, batch: Batch) -> None:
        for pool in (0, 1):
            self.eager(batch, pool)


@pytest.fixture(scope="module")
def world() -> World:
    made = World((1, 2, 4))
    made.graphs.capture()
    return made


def part(name: str, tokens: list[int], start: int, blocks: tuple[int, ...]) -> ScheduledSequence:
    return ScheduledSequence(name, tuple(tokens[start:]), start, blocks[: -(-len(tokens) // BLOCK)], samples=True)


def tokens_of(number: int, length: int) -> list[int]:
    return [(31 * number + 7 * i + i * i) % 160 for i in range(length)]


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([9], id="a batch of one"),
        pytest.param([3, 17, 8], id="filled up"),
        pytest.param([5] * 4, id="full"),
    ],
)
def test_graphs_give_what_any_other_step_gives(world: World, lengths: list[int]) -> None:
    """Over the edges of blocks, with lengths of all kinds."""
    tables = [tuple(range(8 * i, 8 * i + 8))[::-1] for i in range(len(lengths))]
    texts = [tokens_of(i, length) for i, length in enumerate(lengths)]
    world.prefill(Batch(tuple(part(str(i), text, 0, tables[i]) for i, text in enumerate(texts))))
    for _ in range(10):
        for text in texts:
            text.append((text[-1] * 3 + 1) % 160)
        batch = Batch(tuple(part(str(i), text, len(text) - 1, tables[i]) for i, text in enumerate(texts)))
        result = world.run(batch)
        expected = world.eager(batch)
        assert tiny.relative(result.logits, expected) < TOLERANCE
        assert torch.equal(result.best, expected.argmax(-1))
    found, expected = (pool.tensor[:, :NUM_BLOCKS] for pool in world.pools)
    assert torch.equal(found == 0, expected == 0), "only the spare block is written beside"
    assert tiny.relative(found, expected) < TOLERANCE


def test_sequences_come_and_go_between_steps(world: World) -> None:
    """Rows are taken by others, and tables of one block by tables of many."""
    rounds: list[list[tuple[int, int]]] = [[(0, 30), (1, 2)], [(1, 3)], [(2, 6), (1, 4), (0, 31)], [(0, 32)], [(3, 1)]]
    for step in rounds:
        parts = []
        for number, length in step:
            table = tuple(range(10 * number, 10 * number + 9))
            text = tokens_of(number, length)
            if length > 1:
                world.prefill(Batch((part("before", text[:-1], 0, table),)))
            parts.append(part(str(number), text, length - 1, table))
        batch = Batch(tuple(parts))
        assert tiny.relative(world.run(batch).logits, world.eager(batch)) < TOLERANCE


def test_tokens_that_only_the_device_knows(world: World) -> None:
    """Two of them from the step before, in another order; one from the host."""
    texts = [tokens_of(number, 5 + number) for number in range(3)]
    tables = [tuple(range(10 * number, 10 * number + 9)) for number in range(3)]
    parts = [
        part(str(i), text, len(text) - 1, table) for i, (text, table) in enumerate(zip(texts, tables, strict=True))
    ]
    for text, table in zip(texts, tables, strict=True):
        world.prefill(Batch((part("before", text[:-1], 0, table),)))
    expected = world.eager(Batch(tuple(parts)))
    feed = torch.tensor([texts[2][-1], -1, 0, 9, 9, texts[0][-1]])
    fed = [
        replace(parts[0], token_ids=(0,), source=5),
        parts[1],
        replace(parts[2], token_ids=(0,), source=0),
    ]
    assert tiny.relative(world.run(Batch(tuple(fed)), feed).logits, expected) < TOLERANCE
    assert tiny.relative(world.eager(Batch(tuple(fed)), feed=feed), expected) < TOLERANCE


def test_what_graphs_do_not_take(world: World) -> None:
    one = part("a", [1, 2, 3], 2, (0,))
    prompt = part("b", [1, 2, 3], 0, (1,))
    hidden = ScheduledSequence("c", (1,), 0, (2,), samples=False)
    assert world.graphs.run(Batch((one,))) is not None
    assert world.graphs.run(Batch((one, prompt))) is None
    assert world.graphs.run(Batch((one, hidden))) is None
    assert world.graphs.run(Batch((one,) * 5)) is None, "more than the largest size"
    assert World((1,)).graphs.run(Batch((one,))) is None, "nothing is captured yet"


def test_each_size_is_captured_once_with_progress() -> None:
    made = World((1, 2, 4), (16, 8))
    seen: list[tuple[int, int]] = []
    made.graphs.capture(lambda *now: seen.append(now))
    assert seen == [(4, 31), (6, 31), (7, 31), (23, 31), (31, 31)]
    assert made.captured == 5


@pytest.fixture(scope="module")
def prompts() -> World:
    made = World((1,), (8, 16, 40))
    made.graphs.capture()
    return made


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([(0, 11)], id="a prompt"),
        pytest.param([(0, 8)], id="a prompt that fills it"),
        pytest.param([(0, 39)], id="all but one"),
        pytest.param([(21, 13)], id="the rest of a prompt"),
        pytest.param([(9, 1), (30, 1), (0, 7), (12, 9)], id="sequences that decode, and parts of prompts"),
        pytest.param([(9, 1), (30, 1), (4, 1)], id="a batch that is larger than those of decode steps"),
    ],
)
@pytest.mark.parametrize("sampling", [True, False])
def test_steps_with_prompts(prompts: World, spans: list[tuple[int, int]], sampling: bool) -> None:
    """Twice, so that tables are sent and are not."""
    parts = []
    for number, (start, count) in enumerate(spans):
        text, table = tokens_of(number, start + count), tuple(range(10 * number, 10 * number + 10))
        if start:
            prompts.prefill(Batch((part("before", text[:start], 0, table),)))
        found = part(str(number), text, start, table)
        parts.append(replace(found, samples=sampling or count == 1))
    batch = Batch(tuple(parts))
    expected = prompts.eager(batch)
    ends = [end - 1 for end in accumulate(count for _, count in spans)]
    rows = [end for end, sequence in zip(ends, parts, strict=True) if sequence.samples]
    for _ in range(2):
        result = prompts.run(batch)
        assert result.logits.shape[0] == len(result.best) == len(rows)
        assert tiny.relative(result.logits, expected[rows]) < TOLERANCE or not rows
    found_kv, expected_kv = (pool.tensor[:, :NUM_BLOCKS] for pool in prompts.pools)
    assert torch.equal(found_kv == 0, expected_kv == 0), "only the spare block is written beside"
    assert tiny.relative(found_kv, expected_kv) < TOLERANCE


def test_a_prompt_beside_tokens_that_only_the_device_knows(prompts: World) -> None:
    texts = [tokens_of(number, 5 + number) for number in range(3)]
    tables = [tuple(range(10 * number, 10 * number + 9)) for number in range(3)]
    for text, table in zip(texts[:2], tables, strict=False):
        prompts.prefill(Batch((part("before", text[:-1], 0, table),)))
    known = [part(str(i), texts[i], len(texts[i]) - 1 if i < 2 else 0, tables[i]) for i in range(3)]
    expected = prompts.eager(Batch(tuple(known)))[[0, 1, 8]]
    fed = Batch(tuple(replace(one, token_ids=(0,), source=1 - i) if i < 2 else one for i, one in enumerate(known)))
    feed = torch.tensor([texts[1][-1], texts[0][-1], -1])
    assert tiny.relative(prompts.run(fed, feed).logits, expected) < TOLERANCE


def test_drafts_have_rows_of_their_own_even_where_nothing_else_runs(prompts: World) -> None:
    texts, spans = [tokens_of(number, 20) for number in range(3)], [(9, 4), (14, 1), (11, 3)]
    tables = [tuple(range(10 * number, 10 * number + 10)) for number in range(3)]
    parts = []
    for number, ((start, count), text, table) in enumerate(zip(spans, texts, tables, strict=True)):
        prompts.prefill(Batch((part("before", text[:start], 0, table),)))
        parts.append(replace(part(str(number), text[: start + count], start, table), num_drafts=count - 1))
    batch = Batch(tuple(parts))
    result = prompts.run(batch)
    assert result.logits.shape[0] == len(result.best) == 8
    assert tiny.relative(result.logits, prompts.eager(batch)) < TOLERANCE
    one = Batch((parts[0],))
    assert prompts.run(one).logits.shape[0] == 4, "not a decode step of one token"


def test_a_prompt_that_is_longer_than_the_largest(prompts: World) -> None:
    assert prompts.graphs.run(Batch((part("a", tokens_of(1, 41), 0, tuple(range(11))),))) is None


@pytest.mark.parametrize(
    ("step_tokens", "max_model_len", "sizes"),
    [(512, 4096, (16, 32, 64, 128, 256, 512)), (8192, 100, (16, 32, 64)), (8192, 8, ())],
)
def test_sizes_of_steps_with_prompts(step_tokens: int, max_model_len: int, sizes: tuple[int, ...]) -> None:
    assert mixed_sizes(step_tokens, max_model_len) == sizes


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, (1,)), (3, (1, 2, 4)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16, 32)), (500, (1, 2, 4, 8, 16, 32, 64))],
)
def test_sizes(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert capture_sizes(max_num_seqs) == sizes
