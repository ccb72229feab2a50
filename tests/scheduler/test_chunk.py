"""The chunk controller against steps whose times are given, not measured."""

from __future__ import annotations

import pytest

from strata.config import SchedulerConfig
from strata.request import GenerationRequest, SamplingParams
from strata.scheduler.chunk import HELD_STEPS, SMALLEST_CHUNK, ChunkController
from tests.scheduler.simulation import Simulation

DECODE_SECONDS, TOKEN_SECONDS = 0.02, 0.001  # a machine whose step of n prompt tokens takes 0.02 + 0.001 n


def feed(chunk: ChunkController, num_steps: int, decode: float = DECODE_SECONDS, token: float = TOKEN_SECONDS) -> None:
    """Steps as large as the limit allows, on a machine with these times."""
    for _ in range(num_steps):
        chunk.record(4, chunk.limit, decode + token * chunk.limit)


@pytest.mark.parametrize(
    ("num_decoding", "num_prefill", "seconds", "limit"),
    [
        pytest.param(4, 200, 0.2, 200 // 2, id="twice the target: half the chunk"),
        pytest.param(4, 200, 0.125, 160, id="a quarter over the target"),
        pytest.param(4, 200, 0.1, 200, id="on the target"),
        pytest.param(4, 200, 0.08, 250, id="below the target"),
        pytest.param(4, 200, 10.0, 100, id="one slow step halves at most"),
        pytest.param(4, 80, 0.09, 200, id="a short prompt that fits says nothing against more"),
        pytest.param(4, 20, 9.0, 200, id="nor the end of a prompt, however long it takes"),
        pytest.param(4, 180, 0.001, 400, id="never more than a step may hold"),
        pytest.param(0, 200, 9.0, 200, id="nobody waits for a step without decoding sequences"),
        pytest.param(4, 0, 9.0, 200, id="decoding alone is no chunk's fault"),
        pytest.param(4, 200, 0.0, 200, id="a clock that stands still"),
    ],
)
def test_one_step(num_decoding: int, num_prefill: int, seconds: float, limit: int) -> None:
    chunk = ChunkController(0.1, 400)
    chunk.limit = 200
    chunk.record(num_decoding, num_prefill, seconds)
    assert chunk.limit == limit


def test_it_starts_with_whole_steps() -> None:
    assert ChunkController(0.1, 512).limit == 512


@pytest.mark.parametrize("start", [64, 512])
def test_it_settles_where_a_step_takes_the_target(start: int) -> None:
    chunk = ChunkController(0.2, 512)
    chunk.limit = start
    seen = []
    for _ in range(12):
        feed(chunk, 1)
        seen.append(chunk.limit)
    assert 178 <= chunk.limit <= 181  # (0.2 - 0.02) / 0.001, rounded down
    assert seen == sorted(seen, reverse=start == 512), "it swings"


def test_it_follows_a_machine_that_changes() -> None:
    chunk = ChunkController(0.1, 512)
    feed(chunk, 12, token=0.0005)
    fast = chunk.limit
    feed(chunk, 12, token=0.001)
    slow = chunk.limit
    feed(chunk, 12, token=0.0005)
    assert fast == pytest.approx(160, abs=2)
    assert slow == pytest.approx(80, abs=2)
    assert chunk.limit == pytest.approx(160, abs=2)


def test_prompts_get_half_of_the_time_where_decoding_alone_misses_the_target() -> None:
    chunk = ChunkController(0.05, 512)
    for _ in range(10):
        chunk.record(4, 0, 0.2)
    feed(chunk, 12, decode=0.2)
    assert chunk.limit == pytest.approx(200, abs=2)  # 0.2 for decoding, 0.2 for the prompt


def test_the_time_of_decoding_is_a_mean() -> None:
    chunk = ChunkController(0.05, 512)
    for seconds in (0.2, 2.0, 0.2, 0.2):  # one of them held up by something else
        chunk.record(4, 0, seconds)
    feed(chunk, 12, decode=0.2)
    assert 200 < chunk.limit <= 512


def test_a_chunk_never_gets_too_small() -> None:
    chunk = ChunkController(0.001, 512)
    feed(chunk, 20)
    assert chunk.limit == SMALLEST_CHUNK
    few = ChunkController(0.001, 16)
    feed(few, 20)
    assert few.limit == 16


def streamed(chunk: ChunkController, num_steps: int, transfer: float = 3.0) -> list[int]:
    """Limits after steps that each wait for experts over PCIe, for 3 s, or for their own arithmetic."""
    limits = []
    for _ in range(num_steps):
        chunk.record(4, chunk.limit, max(transfer, TOKEN_SECONDS * chunk.limit))
        limits.append(chunk.limit)
    return limits


@pytest.mark.parametrize(
    ("max_tokens", "limit"),
    [
        pytest.param(2048, 2048, id="transfers take longer than the longest chunk"),
        pytest.param(8192, 2048, id="arithmetic takes as long in chunks of 3000"),
    ],
)
def test_chunks_stay_as_long_as_what_each_of_them_brings(max_tokens: int, limit: int) -> None:
    """Tenths of a second are out of reach: in chunks of 64 tokens a prompt would take an hour."""
    seen = streamed(ChunkController(0.1, max_tokens), 4 * HELD_STEPS)
    assert max(seen, key=seen.count) == limit
    assert min(seen) == limit // 2, "tried now and then"
    assert seen.count(limit // 2) <= len(seen) / HELD_STEPS + 1


def test_chunks_get_short_once_nothing_is_brought_any_more() -> None:
    chunk = ChunkController(0.1, 2048)
    streamed(chunk, 8)
    feed(chunk, HELD_STEPS + 12)
    assert chunk.limit == pytest.approx(80, abs=2)


def test_one_step_that_was_held_up_holds_chunks_long_for_a_while_alone() -> None:
    chunk = ChunkController(0.1, 2048)
    feed(chunk, 1)
    chunk.record(4, chunk.limit, 9.0)  # half of the chunk before
    feed(chunk, HELD_STEPS + 12)
    assert chunk.limit == pytest.approx(80, abs=2)


def test_the_last_tokens_of_a_prompt_say_nothing_of_chunks() -> None:
    """Few tokens have their experts brought one by one."""
    chunk = ChunkController(0.1, 2048)
    for _ in range(8):
        streamed(chunk, 1)
        chunk.record(4, 10, 0.2)
    assert chunk.limit == 2048


def test_without_a_target_chunks_are_whole() -> None:
    chunk = ChunkController(None, 512)
    feed(chunk, 20, token=1.0)
    assert chunk.limit == 512


@pytest.mark.parametrize("target", [0.2, None])
def test_the_scheduler_keeps_the_target_while_a_long_prompt_comes_in(target: float | None) -> None:
    """In the simulation a step takes 10 ms and 2 ms more for each token: 0.2 s have room for 95 tokens."""
    config = SchedulerConfig(max_num_batched_tokens=512, decode_latency_seconds=target)
    simulation = Simulation(config, num_blocks=600, max_model_len=2000)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    simulation.add(GenerationRequest("decodes", (1,), sampling))
    simulation.step()
    simulation.add(GenerationRequest("prompt", tuple(range(1500)), SamplingParams(max_tokens=1)))
    seconds = []
    while "prompt" not in simulation.ended:
        began = simulation.now
        simulation.step()
        seconds.append(simulation.now - began)
    if target is None:
        assert len(seconds) == 3, "1500 tokens in steps of 512"
    else:
        assert max(seconds[4:]) <= target + 0.002
        assert seconds[4:-1] == pytest.approx([target] * len(seconds[4:-1]), abs=0.02), "the room is used"
    assert simulation.plan.stats().max_prefill_tokens == pytest.approx(95 if target else 512, abs=3)
