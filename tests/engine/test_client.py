"""The client against a real engine process (with a pretended model): outputs, aborts, failures, ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from strata.config import EngineConfig, SchedulerConfig
from strata.engine import client as client_module
from strata.engine.api import Engine
from strata.engine.client import EngineClient
from strata.engine.fake import FAKE_READY
from strata.engine.messages import LoadProgress
from strata.errors import EngineError, OverloadedError, RequestError, StorageError, UsageError
from strata.experts.counts import ExpertCounts
from strata.ngram.counts import TableCounts
from strata.request import FinishReason, GenerationRequest, SamplingParams
from tests.engine.conftest import StartStub
from tests.engine.stub_loop import CHATTY, HANGS, LOAD, MAX_MODEL_LEN, NUM_BLOCKS, RAISES, REFUSED, STAYS
from tests.scheduler.fake_model import run_alone


def request(
    request_id: str, prompt: tuple[int, ...] = (1, 2, 3), max_tokens: int = 20, *, ignore_eos: bool = False
) -> GenerationRequest:
    return GenerationRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos))


async def collect(engine: Engine, wanted: GenerationRequest) -> tuple[list[int], FinishReason | None]:
    tokens: list[int] = []
    reason = None
    async with aclosing(engine.generate(wanted)) as outputs:
        async for output in outputs:
            assert output.request_id == wanted.request_id
            tokens += output.token_ids
            reason = output.finish_reason
    return tokens, reason


async def stay(engine: Engine, request_id: str, num_tokens: int = 1) -> asyncio.Task[object]:
    """A request that runs until the task is cancelled. The engine gets it before whatever is sent from now on."""
    task: asyncio.Task[object] = asyncio.create_task(collect(engine, request(request_id, (STAYS,) * num_tokens)))
    await asyncio.sleep(0)
    return task


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_many_requests_at_once_get_what_each_would_get_alone(start_stub: StartStub) -> None:
    client = await start_stub(max_num_seqs=3, max_num_batched_tokens=16)
    requests = [request(f"r{n}", tuple(range(1, 2 + 3 * n)), ignore_eos=n % 2 == 0) for n in range(12)]
    outputs = await asyncio.gather(*(collect(client, wanted) for wanted in requests))
    assert outputs == [run_alone(wanted, MAX_MODEL_LEN) for wanted in requests]
    assert client.stats is not None
    assert (client.stats.num_running, client.stats.num_free_blocks) == (0, NUM_BLOCKS)


async def test_the_figures_of_experts_are_there_at_the_start_and_complete_when_the_work_is_done(
    start_stub: StartStub,
) -> None:
    client = await start_stub()
    assert client.experts is not None
    assert client.experts.layers == {3: ExpertCounts()}
    tokens, _ = await collect(client, request("a", max_tokens=5, ignore_eos=True))
    assert len(tokens) == 5
    await client.wait_until(lambda: client.experts is not None and client.experts.total.needed == 5 * 8)
    assert client.experts.total.hit_ratio == 0.25
    await client.close()
    assert client.experts is None


async def test_what_steps_read_of_tables_of_ngrams_is_told(start_stub: StartStub) -> None:
    client = await start_stub()
    assert client.tables is None
    await collect(client, request("a", max_tokens=5, ignore_eos=True))
    assert client.tables == TableCounts(rows=5 * 16)
    await client.close()
    assert client.tables is None


async def test_loading_is_reported(start_stub: StartStub) -> None:
    client = await start_stub(wait=False)
    assert (client.state, client.ready, client.progress) == ("loading", None, None)
    with pytest.raises(EngineError, match="is loading"):
        await anext(client.generate(request("early")))
    ready = await client.wait_ready()
    assert (client.state, client.ready, ready.store_path) == ("ready", ready, "stub")
    assert client.progress == LoadProgress("load", 100, 100)


async def test_a_load_that_reports_nothing_ends_with_the_reason() -> None:
    client = EngineClient(EngineConfig(model="stuck"), load=LOAD, stall_seconds=1.5)
    await client.start()
    try:
        # Where the machine is slow, not even the first report comes in time.
        where = r"(in phase 'load', at 1 of 2 bytes|before the first report)"
        with pytest.raises(EngineError, match=rf"got no further for 1\.5 s, {where}; .*--load-stall-seconds"):
            await client.wait_ready()
        assert client.state == "failed"
    finally:
        await client.close()
    assert client.pid is None


async def test_a_step_that_never_ends_ends_the_engine() -> None:
    client = EngineClient(EngineConfig(model="stub"), load=LOAD, step_seconds=0.5)
    await client.start()
    try:
        await client.wait_ready()
        with pytest.raises(EngineError, match=r"a step has not ended for 0\.5 s: the card hangs"):
            await collect(client, request("a", (HANGS,)))
        assert client.state == "failed"
    finally:
        await client.close()
    assert client.pid is None


@pytest.mark.parametrize(
    ("device", "num_requests", "is_waited_for"),
    [("cuda (NVIDIA GeForce RTX 3090)", 1, True), ("cuda (NVIDIA GeForce RTX 3090)", 0, False), ("cpu", 1, False)],
    ids=["a card steps", "a card is idle", "a CPU may take its time"],
)
def test_for_whose_steps_there_is_a_limit(device: str, num_requests: int, is_waited_for: bool) -> None:
    client = EngineClient(EngineConfig(model="never"), load=LOAD, step_seconds=5)
    client._state, client._ready = "ready", replace(FAKE_READY, device=device)
    client._open = {str(number): asyncio.Queue() for number in range(num_requests)}
    assert client._patience() == (5 if is_waited_for else None)


async def test_every_report_gives_loading_more_time() -> None:
    client = EngineClient(EngineConfig(model="stub"), load=LOAD, stall_seconds=3600)

    def deadline() -> float | None:
        timer = client._stall_timer
        return None if timer is None or timer.cancelled() else timer.when()

    await client.start()
    try:
        deadlines = [deadline()]
        # The same again, and another phase at the same byte: both say that something happens.
        for event in (LoadProgress("load", 9, 9), LoadProgress("load", 9, 9), LoadProgress("prepare", 9, 9)):
            client._on_event(event)
            deadlines.append(deadline())
        assert None not in deadlines
        assert deadlines == sorted(set(deadlines))  # type: ignore[type-var]
        await client.wait_ready()
        assert deadline() is None
    finally:
        await client.close()


async def test_closing_the_iterator_frees_the_blocks(start_stub: StartStub) -> None:
    client = await start_stub()
    await cancel(await stay(client, "gone", num_tokens=60))
    # This one takes the whole pool, so it could not end beside the other.
    wanted = request("next", tuple(range(1, 100)), max_tokens=29, ignore_eos=True)
    assert await collect(client, wanted) == run_alone(wanted, MAX_MODEL_LEN)
    assert client.stats is not None
    assert (client.stats.num_running, client.stats.num_preemptions) == (0, 0)


async def test_an_abort_shows_in_the_state_though_no_step_follows(start_stub: StartStub) -> None:
    client = await start_stub()
    running = await stay(client, "gone")
    await client.wait_for_stats(lambda stats: stats.num_running == 1)
    await cancel(running)
    await client.wait_for_stats(lambda stats: stats.num_free_blocks == NUM_BLOCKS)
    assert client.stats is not None
    assert client.stats.num_running == 0


async def test_refusals_keep_their_type_and_fields(start_stub: StartStub) -> None:
    client = await start_stub(max_num_seqs=1, max_waiting=0)
    with pytest.raises(RequestError, match=r"has 128 tokens; .* at most 127") as refused:
        await anext(client.generate(request("long", tuple(range(128)))))
    assert (refused.value.param, refused.value.code) == ("prompt", "context_length_exceeded")
    running = await stay(client, "runs")
    with pytest.raises(RequestError, match="already in flight"):
        await anext(client.generate(request("runs")))
    with pytest.raises(OverloadedError, match="try again later"):
        await anext(client.generate(request("second")))
    await cancel(running)
    assert await collect(client, request("third")) == run_alone(request("third"), MAX_MODEL_LEN)


async def test_a_refusal_at_a_later_step_reaches_its_request(start_stub: StartStub) -> None:
    client = await start_stub()
    with pytest.raises(RequestError, match="no such grammar") as refused:
        await collect(client, request("bad", (REFUSED,)))
    assert refused.value.code == "invalid_grammar"
    wanted = request("good")
    assert await collect(client, wanted) == run_alone(wanted, MAX_MODEL_LEN)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("missing:/models/x", UsageError, "/models/x is no model; name a store"),
        ("full:/cache", StorageError, "/cache has no room"),
        ("broken", EngineError, "RuntimeError: no kernel image"),
        ("exits", EngineError, "exit code 7"),
    ],
)
async def test_a_failed_load_says_why(start_stub: StartStub, model: str, error: type[Exception], message: str) -> None:
    client = await start_stub(model, wait=False)
    with pytest.raises(error, match=message):
        await client.wait_ready()
    assert client.state == "failed"
    assert message in (client.failure or "")
    with pytest.raises(EngineError, match=message):
        await anext(client.generate(request("late")))


async def test_an_error_in_a_step_ends_every_request(start_stub: StartStub) -> None:
    client = await start_stub()
    running = await stay(client, "good")
    with pytest.raises(EngineError, match="RuntimeError: the card fell off the bus"):
        await collect(client, request("bad", (RAISES,)))
    with pytest.raises(EngineError, match="the card fell off the bus"):
        await running
    assert client.state == "failed"


async def test_a_device_that_goes_while_nobody_asks_for_anything_is_noticed(start_stub: StartStub) -> None:
    client = await start_stub("gone")
    async with asyncio.timeout(30):
        while client.state == "ready":  # noqa: ASYNC110 - nothing is told but the state
            await asyncio.sleep(0.01)
    assert (client.state, client.failure) == ("failed", "the card does not answer")


async def test_a_killed_process_is_noticed(start_stub: StartStub) -> None:
    client = await start_stub()
    waiting = [asyncio.create_task(collect(client, request(name, (HANGS,)))) for name in "ab"]
    running = client.generate(request("c"))
    first = asyncio.ensure_future(anext(running))
    await asyncio.sleep(0)  # let the tasks send their requests
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    for task in (*waiting, first):
        with pytest.raises(EngineError, match=r"signal 9 \(SIGKILL\)"):
            await task
    assert client.state == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_to_the_group_are_left_to_the_parent(start_stub: StartStub, number: signal.Signals) -> None:
    client = await start_stub()
    assert client.pid is not None
    os.kill(client.pid, number)
    assert await collect(client, request("a")) == run_alone(request("a"), MAX_MODEL_LEN)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_that_come_while_the_process_starts_are_left_to_the_parent(
    start_stub: StartStub, number: signal.Signals
) -> None:
    client = await start_stub(wait=False)
    assert client.pid is not None
    os.kill(client.pid, number)
    assert await client.wait_ready()


async def test_close_ends_open_requests_and_the_process(start_stub: StartStub) -> None:
    client = await start_stub()
    running = await stay(client, "open")
    pid = client.pid
    assert pid is not None
    await client.close()
    assert await running == ([], FinishReason.ABORT)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pid not in {child.pid for child in multiprocessing.active_children()}
    await client.close()
    with pytest.raises(EngineError, match="closed"):
        await client.wait_ready()


async def test_close_interrupts_loading_and_lets_it_clean_up(
    start_stub: StartStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LOADING_CLOSE_SECONDS", 60.0)
    marker = tmp_path / "half-written"
    marker.touch()
    client = await start_stub(f"endless:{marker}", wait=False)
    await client.wait_until(lambda: client.progress is not None)
    await client.close()
    assert not marker.exists()


async def test_close_kills_a_process_that_does_not_end(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "CLOSE_SECONDS", 0.0)
    client = await start_stub()
    await client.close()
    assert client.pid is None
    assert "killing it" in caplog.text


@pytest.mark.parametrize("has_reported", [False, True])
async def test_close_kills_a_process_that_loads_without_waiting_long(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_reported: bool
) -> None:
    monkeypatch.setattr(client_module, "LOADING_CLOSE_SECONDS", 0.05 if has_reported else 3600.0)
    monkeypatch.setattr(client_module, "CLOSE_SECONDS", 3600.0)
    client = await start_stub("stuck", wait=False)
    if has_reported:
        await client.wait_until(lambda: client.progress is not None)
    await client.close()
    assert client.pid is None
    assert "killing it" not in caplog.text


async def test_close_before_the_start() -> None:
    client = EngineClient(EngineConfig(model="never"), load=LOAD)
    await client.close()
    assert client.state == "closed"
    with pytest.raises(EngineError, match="make a new client"):
        await client.start()


def test_uvloop_drives_the_client_as_well() -> None:
    async def serve() -> None:
        client = EngineClient(EngineConfig(model="stub"), load=LOAD)
        await client.start()
        await client.wait_ready()
        assert await collect(client, request("a")) == run_alone(request("a"), MAX_MODEL_LEN)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="SIGKILL"):
            await collect(client, request("b", (HANGS,)))
        await client.close()

    uvloop.run(serve())


def test_what_a_pipe_cannot_hold_at_once_passes_both_ways() -> None:
    async def serve() -> None:
        client = EngineClient(EngineConfig(model="stub", scheduler=SchedulerConfig(max_waiting=50)), load=LOAD)
        await client.start()
        await client.wait_ready()
        sampling = SamplingParams(max_tokens=20, stop_token_ids=tuple(range(10**6, 10**6 + 50_000)))
        wanted = [GenerationRequest(str(i), (CHATTY, 2, i), sampling) for i in range(40)]
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)  # nobody reads for a while, and the loop does not wait
        tasks = [asyncio.create_task(collect(client, each)) for each in wanted]
        await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGCONT)
        assert await asyncio.gather(*tasks) == [run_alone(each, MAX_MODEL_LEN) for each in wanted]
        await client.close()

    uvloop.run(serve())


def context_switches(pid: int) -> int:
    """How often the threads of a process have gone to sleep or been put to it."""
    lines = [line for task in Path(f"/proc/{pid}/task").iterdir() for line in (task / "status").read_text().split("\n")]
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


async def test_an_idle_engine_sleeps(start_stub: StartStub) -> None:
    client = await start_stub()
    await collect(client, request("a"))
    assert client.pid is not None
    before = -1
    while (now := context_switches(client.pid)) != before:  # polling would go on for ever
        before = now
        await asyncio.sleep(0.2)


PARENT = """
import asyncio, sys
from strata.config import EngineConfig
from strata.engine.client import EngineClient
from strata.request import GenerationRequest, SamplingParams

async def main(load, prompt):
    global client  # else the pipe would close with the function's end
    client = EngineClient(EngineConfig(model="stub"), load=load)
    await client.start()
    await client.wait_ready()
    stream = client.generate(GenerationRequest("a", prompt, SamplingParams(max_tokens=1)))
    output = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    print(client.pid, flush=True)
    if not sys.stdin.read():
        await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], (int(sys.argv[2]),)))
"""


@pytest.mark.parametrize("returns", [False, True], ids=["killed", "returns without a close"])
@pytest.mark.parametrize("prompt", [1, HANGS], ids=["idle", "stuck in a step"])
def test_the_parents_end_ends_the_process(tmp_path: Path, prompt: int, returns: bool) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, script, LOAD, str(prompt)],
        stdin=subprocess.PIPE if returns else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
    ) as parent:
        assert parent.stdout is not None
        engine = os.pidfd_open(int(parent.stdout.readline()))
        if returns:
            parent.communicate(b"return", timeout=60)
        else:
            parent.kill()
    try:
        assert select.select([engine], [], [], 60)[0], "the engine outlives its parent"
    finally:
        os.close(engine)


def test_importing_the_client_does_not_import_torch() -> None:
    code = "import sys, strata.engine.client, strata.engine.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
