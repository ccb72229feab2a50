"""The scheduler's rules, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from strata.config import SchedulerConfig
from strata.errors import OptionError, OverloadedError, RequestError
from strata.request import FinishReason, GenerationRequest, SamplingParams
from strata.scheduler.batch import Batch
from strata.scheduler.scheduler import Scheduler
from tests.scheduler.fake_model import EOS


def scheduler(
    num_blocks: int = 64,
    max_model_len: int = 256,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 32,
    max_waiting: int = 8,
) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_waiting=max_waiting
        ),
        num_blocks=num_blocks,
        block_size=16,
        max_model_len=max_model_len,
        eos_token_ids=(EOS,),
    )


def request(request_id: str, num_prompt: int = 4, max_tokens: int = 8, **sampling: object) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    first = 1000 * sum(request_id.encode())  # prompts with nothing in common
    return GenerationRequest(request_id, tuple(range(first, first + num_prompt)), params)


def shape(batch: Batch | None) -> list[tuple[str, int, int]]:
    """(request, position of the first token, number of tokens) of each part of a step."""
    assert batch is not None
    return [(part.request_id, part.start, len(part.token_ids)) for part in batch.sequences]


def step(plan: Scheduler, token_id: int = 9) -> list[tuple[str, int, int]]:
    """Run one step in which every sequence that samples draws ``token_id``."""
    batch = plan.schedule()
    assert batch is not None
    plan.update(batch, {part.request_id: (token_id,) for part in batch.sequences if part.samples})
    plan.check_integrity()
    return shape(batch)


def test_nothing_to_do_is_no_step() -> None:
    plan = scheduler()
    assert plan.schedule() is None
    assert not plan.has_work


def test_prompts_share_a_step_and_then_decode_together() -> None:
    plan = scheduler()
    plan.add(request("a", num_prompt=4))
    plan.add(request("b", num_prompt=6))
    assert step(plan) == [("a", 0, 4), ("b", 0, 6)]
    assert step(plan) == [("a", 4, 1), ("b", 6, 1)]


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    plan = scheduler(max_num_batched_tokens=32)
    plan.add(request("short"))
    step(plan)
    plan.add(request("long", num_prompt=70))
    assert step(plan) == [("short", 4, 1), ("long", 0, 31)]
    assert step(plan) == [("short", 5, 1), ("long", 31, 31)]
    assert step(plan) == [("short", 6, 1), ("long", 62, 8)]
    assert step(plan) == [("short", 7, 1), ("long", 70, 1)]


def test_only_the_last_chunk_samples() -> None:
    plan = scheduler(max_num_batched_tokens=32)
    plan.add(request("long", num_prompt=40))
    sampled = []
    for _ in range(2):
        batch = plan.schedule()
        assert batch is not None
        sampled.append(batch.sequences[0].samples)
        plan.update(batch, {"long": (9,)})
    assert sampled == [False, True]


def test_requests_start_in_order_of_arrival() -> None:
    plan = scheduler(max_num_seqs=1)
    for name in "abc":
        plan.add(request(name, max_tokens=1))
    assert [step(plan)[0][0] for _ in range(3)] == ["a", "b", "c"]
    assert not plan.has_work


def test_a_small_request_does_not_pass_a_big_one_that_waits() -> None:
    plan = scheduler(num_blocks=4)
    plan.add(request("runs", num_prompt=30, max_tokens=2))
    step(plan)
    plan.add(request("big", num_prompt=40))
    plan.add(request("small"))
    assert step(plan) == [("runs", 30, 1)]
    assert step(plan)[0] == ("big", 0, 32)


@pytest.mark.parametrize(
    ("token_id", "sampling", "reason"),
    [
        (EOS, {}, FinishReason.STOP),
        (EOS, {"ignore_eos": True}, None),
        (7, {"stop_token_ids": (7,)}, FinishReason.STOP),
        (7, {"stop_token_ids": (8,)}, None),
        (7, {"max_tokens": 1}, FinishReason.LENGTH),
        (EOS, {"max_tokens": 1}, FinishReason.STOP),  # a stop token says more than the limit it met
    ],
)
def test_end_of_a_request(token_id: int, sampling: dict[str, object], reason: FinishReason | None) -> None:
    plan = scheduler()
    plan.add(request("a", **sampling))  # type: ignore[arg-type]
    batch = plan.schedule()
    assert batch is not None
    (output,) = plan.update(batch, {"a": (token_id,)})
    assert (output.token_ids, output.finish_reason) == ((token_id,), reason)
    assert plan.has_work == (reason is None)
    assert (plan.stats().num_free_blocks == 64) == (reason is not None)


def test_the_context_length_ends_a_request() -> None:
    plan = scheduler(max_model_len=6)
    plan.add(request("a", num_prompt=4, max_tokens=100))
    step(plan)
    assert plan.has_work
    step(plan)
    assert not plan.has_work


def test_blocks_are_taken_as_the_sequence_grows() -> None:
    plan = scheduler()
    plan.add(request("a", num_prompt=15, max_tokens=100))
    step(plan)
    step(plan)
    assert plan.stats().num_free_blocks == 63
    step(plan)
    assert plan.stats().num_free_blocks == 62


def test_a_request_is_not_let_in_at_the_brim() -> None:
    plan = scheduler(num_blocks=2)
    plan.add(request("old", num_prompt=15, max_tokens=3))
    plan.add(request("young"))
    for start, count in ((0, 15), (15, 1), (16, 1)):
        assert step(plan) == [("old", start, count)]  # a block stays free for "old"
    assert step(plan) == [("young", 0, 4)]
    assert plan.stats().num_preemptions == 0


def test_the_youngest_is_preempted_and_starts_again_with_its_output() -> None:
    plan = scheduler(num_blocks=4)
    plan.add(request("old", num_prompt=15, max_tokens=40))
    plan.add(request("young", num_prompt=15, max_tokens=40))
    assert step(plan) == [("old", 0, 15), ("young", 0, 15)]
    for _ in range(17):
        step(plan)
    assert plan.stats().num_preemptions == 0
    assert step(plan) == [("old", 32, 1)]
    stats = plan.stats()
    assert (stats.num_preemptions, stats.num_running, stats.num_waiting) == (1, 1, 1)
    while "old" in plan._sequences:
        assert [part[0] for part in step(plan)] == ["old"]
    assert step(plan) == [("young", 0, 32)]
    assert step(plan) == [("young", 32, 1)]


def test_abort_frees_blocks_at_once() -> None:
    plan = scheduler(max_num_seqs=1)
    plan.add(request("runs"))
    plan.add(request("waits"))
    step(plan)
    assert plan.stats().num_free_blocks == 63
    assert plan.abort("runs")
    assert plan.stats().num_free_blocks == 64
    assert plan.abort("waits")
    assert not plan.has_work
    assert not plan.abort("waits")
    assert plan.schedule() is None


def test_a_full_queue_refuses() -> None:
    plan = scheduler(max_num_seqs=2, max_waiting=1)
    for name in "abc":
        plan.add(request(name))
    with pytest.raises(OverloadedError, match="2 may run and 1 wait"):
        plan.add(request("d"))
    plan.abort("a")
    plan.add(request("d"))


@pytest.mark.parametrize(
    ("bad", "message", "param"),
    [
        (GenerationRequest("x", (), SamplingParams(max_tokens=1)), "no tokens", "prompt"),
        (request("x", num_prompt=64, max_tokens=1), "has 64 tokens; max-model-len is 64 .* at most 63", "prompt"),
        (request("x", max_tokens=0), "max_tokens is 0; at least 1", "max_tokens"),
        (request("x", num_prompt=16, max_tokens=18), "may come to 34 tokens, but the KV cache holds 32", "max_tokens"),
        (request("there"), "'there' is already in flight", None),
        (replace(request("x"), timeout_seconds=0.0), "timeout is 0.0 seconds; give more than 0", "timeout"),
        (replace(request("x"), timeout_seconds=math.nan), "timeout is nan seconds", "timeout"),
    ],
)
def test_a_request_that_can_never_run_is_refused(bad: GenerationRequest, message: str, param: str | None) -> None:
    plan = scheduler(num_blocks=2, max_model_len=64)
    plan.add(request("there"))
    with pytest.raises(RequestError, match=message) as caught:
        plan.add(bad)
    assert caught.value.param == param
    assert plan.stats().num_waiting == 1


def test_a_request_that_just_fits_is_served() -> None:
    plan = scheduler(num_blocks=2, max_model_len=64)
    plan.add(request("x", num_prompt=16, max_tokens=17))
    for _ in range(17):
        step(plan)
    assert not plan.has_work


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "one token of every sequence"),
        ({"max_waiting": -1}, "max_waiting is -1"),
        ({"decode_latency_seconds": 0.0}, "decode_latency_seconds is 0.0; give more than 0, or None"),
    ],
)
def test_limits_that_allow_nothing_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Scheduler(SchedulerConfig(**limits), num_blocks=4, block_size=16, max_model_len=64, eos_token_ids=())


def test_steps_are_timed_from_their_plan_to_their_tokens() -> None:
    times = iter([0.0, 10.0, 12.0, 20.0, 25.0])  # arrival, then plan and tokens of two steps
    plan = Scheduler(
        SchedulerConfig(), num_blocks=4, block_size=16, max_model_len=64, eos_token_ids=(), clock=lambda: next(times)
    )
    plan.add(request("a"))
    step(plan)
    assert plan.stats().step_seconds == 2
    step(plan)
    assert plan.stats().step_seconds == 7


def test_each_output_says_when_its_request_left_the_queue() -> None:
    """That of its first step, also after a preemption; a request that never ran says nothing."""
    clock = iter(range(100))
    plan = Scheduler(
        SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=32),
        num_blocks=64,
        block_size=16,
        max_model_len=256,
        eos_token_ids=(EOS,),
        clock=lambda: next(clock),
    )
    plan.add(request("a", max_tokens=2), arrived=0)
    plan.add(replace(request("b"), timeout_seconds=0.5), arrived=0)
    began = []
    for _ in range(2):
        batch = plan.schedule()
        assert batch is not None
        outputs = plan.update(batch, {"a": (9,)})
        began += [(output.request_id, output.began) for output in outputs]
    assert began == [("a", 0), ("b", None), ("a", 0)]
