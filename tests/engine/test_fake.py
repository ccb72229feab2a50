"""The fake engine keeps the promises of ``strata.engine.api.Engine``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import exp

import pytest

from strata.engine.api import Engine
from strata.engine.fake import FAKE_READY, FakeEngine
from strata.engine.messages import EngineFailed, LoadProgress
from strata.errors import EngineError, OverloadedError, RequestError, StorageError, StrataError, UsageError
from strata.request import FinishReason, GenerationRequest, SamplingParams, TokenOutput


def request(request_id: str = "a", prompt: tuple[int, ...] = (5, 6, 7), max_tokens: int = 16) -> GenerationRequest:
    return GenerationRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens))


async def collect(outputs: AsyncGenerator[TokenOutput, None]) -> tuple[list[int], FinishReason | None]:
    tokens: list[int] = []
    reason = None
    async with aclosing(outputs) as stream:
        async for output in stream:
            assert reason is None, "nothing follows the end"
            tokens += output.token_ids
            reason = output.finish_reason
    return tokens, reason


async def started(engine: FakeEngine) -> FakeEngine:
    as_protocol: Engine = engine  # checked by mypy
    await as_protocol.start()
    await as_protocol.wait_ready()
    return engine


async def test_echo_ends_with_the_end_of_sequence_token() -> None:
    engine = await started(FakeEngine())
    assert await collect(engine.generate(request())) == ([5, 6, 7, 0], FinishReason.STOP)
    assert engine.num_open == 0
    assert engine.aborted == []


async def test_script_is_cut_at_max_tokens() -> None:
    engine = await started(FakeEngine(script=lambda _: [8, 9, 10]))
    assert await collect(engine.generate(request(max_tokens=2))) == ([8, 9], FinishReason.LENGTH)


async def test_load_stages_are_reported_one_by_one() -> None:
    engine = FakeEngine(stages=[LoadProgress("convert", 1, 2), LoadProgress("load", 3, 4)], hold_load=True)
    await engine.start()
    waiting = asyncio.create_task(engine.wait_ready())
    seen = [engine.progress]
    for _ in range(2):
        engine.next_stage()
        seen.append(engine.progress)
    assert seen == [None, LoadProgress("convert", 1, 2), LoadProgress("load", 3, 4)]
    assert engine.state == "loading"
    with pytest.raises(EngineError, match="loading"):
        await anext(engine.generate(request()))
    engine.next_stage()
    assert await waiting == FAKE_READY
    assert engine.ready == FAKE_READY


@pytest.mark.parametrize("error", [UsageError, StorageError, EngineError])
async def test_load_failure_has_the_type_of_its_cause(error: type[StrataError]) -> None:
    engine = FakeEngine(load_failure=EngineFailed(error("no such model")))
    await engine.start()
    with pytest.raises(error, match="no such model"):
        await engine.wait_ready()
    assert (engine.state, engine.failure) == ("failed", "no such model")


async def test_tokens_come_only_as_released() -> None:
    engine = await started(FakeEngine())
    engine.pause()
    stream = engine.generate(request())
    first = asyncio.ensure_future(anext(stream))
    await engine.wait_until(lambda fake: fake.num_open == 1)
    assert not first.done()
    engine.release()
    assert (await first).token_ids == (5,)
    second = asyncio.ensure_future(anext(stream))
    engine.resume()
    assert (await second).token_ids == (6,)
    await stream.aclose()


async def test_closing_the_iterator_is_recorded_as_an_abort() -> None:
    engine = await started(FakeEngine())
    stream = engine.generate(request("gone"))
    await anext(stream)
    await stream.aclose()
    assert engine.aborted == ["gone"]
    assert engine.num_open == 0


async def test_failure_reaches_every_open_request() -> None:
    engine = await started(FakeEngine())
    engine.pause()
    waiting = [asyncio.create_task(collect(engine.generate(request(name)))) for name in "ab"]
    await engine.wait_until(lambda fake: fake.num_open == 2)
    engine.fail("gone")
    for task in waiting:
        with pytest.raises(EngineError, match="gone"):
            await task
    assert engine.state == "failed"
    assert engine.aborted == []


async def test_close_ends_open_requests_with_abort() -> None:
    engine = await started(FakeEngine())
    engine.pause()
    waiting = asyncio.create_task(collect(engine.generate(request())))
    await engine.wait_until(lambda fake: fake.num_open == 1)
    await engine.close()
    assert await waiting == ([], FinishReason.ABORT)
    assert engine.state == "closed"


async def test_refusals() -> None:
    engine = await started(FakeEngine(max_open=1))
    engine.reject_next(RequestError("too long"))
    with pytest.raises(RequestError, match="too long"):
        await anext(engine.generate(request()))
    engine.pause()
    waiting = asyncio.create_task(collect(engine.generate(request("a"))))
    await engine.wait_until(lambda fake: fake.num_open == 1)
    with pytest.raises(RequestError, match="already in flight"):
        await anext(engine.generate(request("a")))
    with pytest.raises(OverloadedError, match="1 are allowed"):
        await anext(engine.generate(request("b")))
    engine.resume()
    assert await waiting == ([5, 6, 7, 0], FinishReason.STOP)


async def test_stats_count_blocks_of_open_requests() -> None:
    engine = await started(FakeEngine())
    stream = engine.generate(request(prompt=tuple(range(1, 17))))
    await anext(stream)
    stats = engine.stats
    assert stats is not None
    assert (stats.num_running, stats.num_total_blocks - stats.num_free_blocks) == (1, 2)
    await stream.aclose()


@pytest.mark.parametrize("num_top", [None, 0, 3])
async def test_logprobs_come_as_they_are_asked(num_top: int | None) -> None:
    engine = await started(FakeEngine())
    wanted = GenerationRequest("a", (5, 1), SamplingParams(max_tokens=16, logprobs=num_top))
    outputs = [output async for output in engine.generate(wanted)]
    assert [len(output.logprobs) for output in outputs] == [0 if num_top is None else 1] * 3
    for output in outputs:
        for scores in output.logprobs:
            assert len(scores.top) == min(num_top or 0, output.token_ids[0] + 1)
            assert scores.top == tuple(sorted(scores.top, key=lambda pair: -pair[1]))
            assert sum(exp(logprob) for _, logprob in scores.top) <= 1
