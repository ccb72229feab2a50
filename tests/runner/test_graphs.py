"""Decode steps at fixed addresses: the same as any other step, whatever the batch sizes that were prepared.

On the CPU a step is run again where a card replays it; the inputs, and what is done with them, are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from strata.memory.kv import KVPool
from strata.models import registry
from strata.models.decoder import Decoder
from strata.plan.capture import capture_sizes
from strata.runner.decode import DecodeInputs
from strata.runner.graphs import DecodeGraphs, Step
from strata.runner.inputs import build_inputs
from strata.runner.step import StepResult
from strata.scheduler.batch import Batch, ScheduledSequence
from tests.models import tiny
from tests.runner.paged_kernels import PagedKernels

BLOCK, NUM_BLOCKS, MAX_LEN = 4, 40, 64
TOLERANCE = 1e-5  # a product over more rows adds up in another order


class World:
    """A tiny model with two pools: one is decoded with graphs, the other without."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        hf = tiny.hf_llama(num_hidden_layers=2)
        config = tiny.model_config(hf)
        self.model: Decoder = registry.build(config, tiny.checkpoint(hf), PagedKernels(), MAX_LEN)
        self.pools = [
            KVPool(2, NUM_BLOCKS + 1, BLOCK, config.num_kv_heads, config.head_dim, torch.float32, torch.device("cpu"))
            for _ in range(2)
        ]
        inputs = DecodeInputs(max(sizes), 6, MAX_LEN, BLOCK, NUM_BLOCKS, torch.device("cpu"))
        self.captured = 0
        self.graphs = DecodeGraphs(self.model, self.pools[0], inputs, sizes, self.capture)

    def capture(self, step: Step) -> tuple[Callable[[], None], StepResult]:
        self.captured += 1
        result = step()

        def replay() -> None:
            again = step()
            result.logits.copy_(again.logits)
            result.best.copy_(again.best)

        return replay, result

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
        assert world.graphs.takes(batch)
        result = world.graphs.run(batch)
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
        assert tiny.relative(world.graphs.run(batch).logits, world.eager(batch)) < TOLERANCE


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
    assert tiny.relative(world.graphs.run(Batch(tuple(fed)), feed).logits, expected) < TOLERANCE
    assert tiny.relative(world.eager(Batch(tuple(fed)), feed=feed), expected) < TOLERANCE


def test_what_graphs_do_not_take(world: World) -> None:
    one = part("a", [1, 2, 3], 2, (0,))
    prompt = part("b", [1, 2, 3], 0, (1,))
    hidden = ScheduledSequence("c", (1,), 0, (2,), samples=False)
    assert world.graphs.takes(Batch((one,)))
    assert not world.graphs.takes(Batch((one, prompt)))
    assert not world.graphs.takes(Batch((one, hidden)))
    assert not world.graphs.takes(Batch((one,) * 5)), "more than the largest size"
    assert not World((1,)).graphs.takes(Batch((one,))), "nothing is captured yet"


def test_each_size_is_captured_once_with_progress() -> None:
    made = World((1, 2, 4))
    seen: list[tuple[int, int]] = []
    made.graphs.capture(lambda *now: seen.append(now))
    assert seen == [(4, 7), (6, 7), (7, 7)]
    assert made.captured == 3


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, (1,)), (3, (1, 2, 4)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16, 32)), (500, (1, 2, 4, 8, 16, 32, 64))],
)
def test_sizes(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert capture_sizes(max_num_seqs) == sizes
