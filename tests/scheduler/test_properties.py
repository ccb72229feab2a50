"""Whatever arrives, and however small the pool: every request ends, and as if it had run alone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.config import SchedulerConfig
from strata.errors import OverloadedError, RequestError
from strata.request import FinishReason, GenerationRequest, SamplingParams
from strata.scheduler.batch import Batch
from strata.scheduler.scheduler import Scheduler
from tests.scheduler.fake_model import EOS, VOCAB_SIZE, PagedRunner, run_alone

BLOCK_SIZE = 4
MAX_MODEL_LEN = 40


@dataclass(frozen=True)
class Arrival:
    """A request that comes before step ``at_step`` and is aborted ``abort_after`` steps later, if it is still there."""

    at_step: int
    request: GenerationRequest
    abort_after: int | None


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    coming = []
    for index in range(draw(st.integers(1, 12))):
        prompt = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=MAX_MODEL_LEN))
        sampling = SamplingParams(
            max_tokens=draw(st.integers(1, 30)),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=tuple(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2))),
        )
        request = GenerationRequest(f"r{index}", tuple(prompt), sampling)
        abort_after = draw(st.none() | st.integers(0, 20))
        coming.append(Arrival(draw(st.integers(0, 25)), request, abort_after))
    return coming


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    max_num_seqs = draw(st.integers(1, 5))
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 24)),
        max_waiting=draw(st.integers(0, 12)),
    )


def check_step(batch: Batch, config: SchedulerConfig, history: dict[str, list[int]], computed: dict[str, int]) -> None:
    """A step is within its limits, and each part continues where the cache ends, in blocks of its own."""
    assert 1 <= batch.num_tokens <= config.max_num_batched_tokens
    assert len(batch.sequences) <= config.max_num_seqs
    names = [part.request_id for part in batch.sequences]
    assert len(set(names)) == len(names)
    in_use = [block for part in batch.sequences for block in part.block_ids]
    assert len(set(in_use)) == len(in_use), "two requests share a block"
    for part in batch.sequences:
        assert part.token_ids, "an empty part"
        assert part.start in (0, computed.get(part.request_id, 0)), "neither a continuation nor a new start"
        end = part.start + len(part.token_ids)
        assert list(part.token_ids) == history[part.request_id][part.start : end]
        assert len(part.block_ids) == -(-end // BLOCK_SIZE)
        assert part.samples == (end == len(history[part.request_id]))
    decoding = [part.start > 0 and part.start == len(history[part.request_id]) - 1 for part in batch.sequences]
    assert decoding == sorted(decoding, reverse=True), "decoding comes behind a prefill chunk"


@settings(max_examples=300, deadline=None)
@given(coming=arrivals(), config=configs(), num_blocks=st.integers(1, 24))
def test_every_request_ends_as_if_alone(coming: list[Arrival], config: SchedulerConfig, num_blocks: int) -> None:
    plan = Scheduler(
        config, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN, eos_token_ids=(EOS,)
    )
    runner = PagedRunner(num_blocks, BLOCK_SIZE)
    requests: dict[str, GenerationRequest] = {}  # those that were let in
    history: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    ended: dict[str, FinishReason] = {}
    started: list[str] = []
    aborts: dict[int, list[str]] = {}
    # The oldest request advances in every step: at most all tokens prefilled again, then all decoded.
    limit = max(arrival.at_step for arrival in coming) + 2 * MAX_MODEL_LEN * len(coming)
    step = 0
    while plan.has_work or step <= max(arrival.at_step for arrival in coming):
        assert step < limit, "a request starves"
        for arrival in coming:
            if arrival.at_step == step:
                num_prompt = len(arrival.request.prompt_token_ids)
                try:
                    plan.add(arrival.request)
                except RequestError:
                    longest = min(num_prompt + arrival.request.sampling.max_tokens, MAX_MODEL_LEN)
                    assert num_prompt >= MAX_MODEL_LEN or longest - 1 > num_blocks * BLOCK_SIZE
                    continue
                except OverloadedError:
                    assert len(requests) - len(ended) == config.max_num_seqs + config.max_waiting
                    continue
                requests[arrival.request.request_id] = arrival.request
                history[arrival.request.request_id] = list(arrival.request.prompt_token_ids)
                if arrival.abort_after is not None:
                    aborts.setdefault(step + arrival.abort_after, []).append(arrival.request.request_id)
        for request_id in aborts.get(step, ()):
            assert plan.abort(request_id) == (request_id not in ended)
            ended.setdefault(request_id, FinishReason.ABORT)
        step += 1
        batch = plan.schedule()
        assert (batch is None) == (not plan.has_work), "requests wait, but nothing runs"
        if batch is None:
            continue
        check_step(batch, config, history, computed)
        assert not ended.keys() & {part.request_id for part in batch.sequences}, "an ended request runs"
        started += [part.request_id for part in batch.sequences if part.request_id not in started]
        for output in plan.update(batch, runner.run(batch)):
            history[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                ended[output.request_id] = output.finish_reason
        for part in batch.sequences:
            computed[part.request_id] = part.start + len(part.token_ids)
        plan.check_integrity()

    assert ended.keys() == requests.keys()
    assert started == [name for name in requests if name in started], "not in order of arrival"
    stats = plan.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, num_blocks)
    for request_id, request in requests.items():
        output_ids = history[request_id][len(request.prompt_token_ids) :]
        expected, reason = run_alone(request, MAX_MODEL_LEN)
        if ended[request_id] is FinishReason.ABORT:
            assert output_ids == expected[: len(output_ids)]
        else:
            assert (output_ids, ended[request_id]) == (expected, reason)
