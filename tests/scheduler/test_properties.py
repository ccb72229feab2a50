"""Whatever arrives, and however small the pool: every request ends, and as if it had run alone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.config import SchedulerConfig
from strata.errors import OverloadedError, RequestError
from strata.request import FinishReason, GenerationRequest, SamplingParams
from tests.scheduler.fake_model import VOCAB_SIZE, run_alone
from tests.scheduler.oracle import Oracle
from tests.scheduler.simulation import Simulation

MAX_MODEL_LEN = 40
# Prompts begin with a piece of one of these, which differ in their first token alone.
BEGINNINGS = tuple((first, *(7 * place % VOCAB_SIZE for place in range(1, MAX_MODEL_LEN))) for first in (1, 2))


@dataclass(frozen=True)
class Arrival:
    """A request that comes before step ``at_step`` and is aborted ``abort_after`` steps later, if it is still there."""

    at_step: int
    request: GenerationRequest
    abort_after: int | None


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    coming: list[Arrival] = []
    prompt: tuple[int, ...] = ()
    for index in range(draw(st.integers(1, 12))):
        if not coming or draw(st.booleans()):  # else the same prompt once more
            beginning = draw(st.sampled_from(BEGINNINGS))[: draw(st.integers(0, MAX_MODEL_LEN))]
            prompt = (*beginning, *draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6)))
        sampling = SamplingParams(
            max_tokens=draw(st.integers(1, 30)),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=tuple(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2))),
        )
        request = GenerationRequest(
            f"r{index}",
            prompt,
            sampling,
            priority=draw(st.integers(-1, 1)),
            timeout_seconds=draw(st.none() | st.floats(0.001, 1)),
        )
        coming.append(Arrival(draw(st.integers(0, 25)), request, draw(st.none() | st.integers(0, 20))))
    return coming


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    max_num_seqs = draw(st.integers(1, 5))
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.sampled_from((0, 1, 2, 5, 20))),
        max_waiting=draw(st.integers(0, 12)),
        decode_latency_seconds=draw(st.sampled_from((None, 0.02, 0.1))),
        speculative=draw(st.sampled_from(("off", "lookup"))),
    )


@settings(max_examples=250, deadline=None)
@given(
    coming=arrivals(),
    config=configs(),
    num_blocks=st.integers(1, 14),
    prefix_cache=st.booleans(),
    ahead=st.booleans(),
    drafter=st.none() | st.builds(Oracle, st.integers(0, 2), st.integers(0, 3)),
)
def test_every_request_ends_as_if_alone(
    coming: list[Arrival],
    config: SchedulerConfig,
    num_blocks: int,
    prefix_cache: bool,
    ahead: bool,
    drafter: Oracle | None,
) -> None:
    world = Simulation(
        config,
        num_blocks=num_blocks,
        block_size=4,
        max_model_len=MAX_MODEL_LEN,
        prefix_cache=prefix_cache,
        ahead=ahead,
        drafter=drafter,
    )
    check(world, coming)
    stats = world.plan.stats()
    if not prefix_cache:
        assert (stats.num_prefix_hits, stats.num_cached_blocks) == (0, 0)


@settings(max_examples=250, deadline=None)
@given(
    coming=arrivals(),
    config=configs(),
    num_blocks=st.integers(2, 60),
    num_states=st.sampled_from((1, 2, 5)),
    num_snapshots=st.integers(0, 3),
    ahead=st.booleans(),
    drafter=st.none() | st.builds(Oracle, st.integers(0, 2), st.integers(0, 3)),
)
def test_every_request_of_a_model_with_states_ends_as_if_alone(
    coming: list[Arrival],
    config: SchedulerConfig,
    num_blocks: int,
    num_states: int,
    num_snapshots: int,
    ahead: bool,
    drafter: Oracle | None,
) -> None:
    """Blocks of two tokens, so that states are kept in most prompts."""
    world = Simulation(
        config,
        num_blocks=num_blocks,
        block_size=2,
        max_model_len=MAX_MODEL_LEN,
        ahead=ahead,
        num_states=num_states,
        num_snapshots=num_snapshots,
        drafter=drafter,
    )
    check(world, coming)
    stats = world.plan.stats()
    assert (stats.num_used_states, stats.num_total_states) == (0, num_states)
    assert stats.num_snapshots <= num_snapshots
    if not num_snapshots:
        assert (stats.num_prefix_hits, stats.num_cached_blocks) == (0, 0)


def check(world: Simulation, coming: list[Arrival]) -> None:
    """Run all that comes, and compare."""
    size, num_blocks = world.runner.block_size, len(world.runner.blocks)
    aborts: dict[int, list[str]] = {}
    last = max(arrival.at_step for arrival in coming)
    # The first one advances in every step. It gives way to a newcomer at most, and then prefills all once more.
    limit = last + 4 * MAX_MODEL_LEN * len(coming)
    step = 0
    while step <= last or not world.done:
        assert step < limit, "a request starves"
        for arrival in coming:
            request = arrival.request
            if arrival.at_step == step:
                try:
                    with suppress(OverloadedError):
                        world.add(request)
                        if arrival.abort_after is not None:
                            aborts.setdefault(step + arrival.abort_after, []).append(request.request_id)
                except RequestError:
                    num_prompt = len(request.prompt_token_ids)
                    longest = min(num_prompt + request.sampling.max_tokens, MAX_MODEL_LEN)
                    assert not 0 < num_prompt < MAX_MODEL_LEN or longest - 1 > num_blocks * size
        for name in aborts.get(step, ()):
            world.abort(name)
        step += 1
        if not world.done:
            world.step()

    assert world.ended.keys() == world.requests.keys()
    assert world.plan.schedule() is None
    stats = world.plan.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, num_blocks)
    for name, request in world.requests.items():
        output_ids, reason = world.generated[name], world.ended[name]
        expected = run_alone(request, MAX_MODEL_LEN)
        if reason in (FinishReason.ABORT, FinishReason.TIMEOUT):
            assert output_ids == expected[0][: len(output_ids)]
        else:
            assert (output_ids, reason) == expected
    for name, num_cached in world.cached.items():
        assert num_cached % size == 0
        assert num_cached < len(world.requests[name].prompt_token_ids)
