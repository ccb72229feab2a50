"""What ``strata.engine.api.Engine`` promises, of the real client and of the fake alike."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from strata.config import EngineConfig, SchedulerConfig
from strata.engine.client import EngineClient
from strata.engine.fake import FakeEngine
from strata.errors import EngineError
from strata.request import FinishReason, GenerationRequest, SamplingParams
from tests.engine.stub_loop import HANGS, LOAD

AnyEngine = EngineClient | FakeEngine


@pytest.fixture(params=["client", "fake"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[AnyEngine]:
    """An engine that was not started."""
    made: AnyEngine = (
        EngineClient(EngineConfig(model="stub"), load=LOAD) if request.param == "client" else FakeEngine(hold_load=True)
    )
    yield made
    await made.close()


async def get_ready(engine: AnyEngine) -> None:
    await engine.start()
    while isinstance(engine, FakeEngine) and engine.state == "loading":
        engine.next_stage()
    await engine.wait_ready()


async def stay(engine: AnyEngine) -> asyncio.Task[FinishReason | None]:
    """A request that gets nothing; gives the reason for its end."""
    if isinstance(engine, FakeEngine):
        engine.pause()
    stream = engine.generate(GenerationRequest("a", (HANGS,), SamplingParams(max_tokens=1)))

    async def first() -> FinishReason | None:
        return (await anext(stream)).finish_reason

    task = asyncio.create_task(first())
    await asyncio.sleep(0)
    return task


def test_the_capacity_is_that_of_the_settings(engine: AnyEngine) -> None:
    assert engine.capacity == SchedulerConfig().max_num_seqs + SchedulerConfig().max_waiting


async def test_the_state_is_told_from_readiness_on(engine: AnyEngine) -> None:
    assert engine.stats is None
    await get_ready(engine)
    assert engine.ready is not None
    total = engine.ready.num_kv_blocks
    assert engine.stats is not None, "before any request"
    assert (engine.stats.num_running, engine.stats.num_waiting) == (0, 0)
    assert (engine.stats.num_free_blocks, engine.stats.num_total_blocks) == (total, total)


async def test_a_failed_engine_has_no_state_and_keeps_its_facts(engine: AnyEngine) -> None:
    await get_ready(engine)
    waiting = await stay(engine)
    if isinstance(engine, FakeEngine):
        engine.fail("signal 9")
    else:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="signal 9"):
        await waiting
    assert (engine.state, engine.stats) == ("failed", None)
    assert engine.ready is not None
    assert "signal 9" in (engine.failure or "")


async def test_a_closed_engine_has_no_state(engine: AnyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.engine.client.CLOSE_SECONDS", 0.05)  # the process is stuck in its step
    await get_ready(engine)
    waiting = await stay(engine)
    await engine.close()
    assert await waiting is FinishReason.ABORT
    assert (engine.state, engine.stats, engine.failure) == ("closed", None, None)
