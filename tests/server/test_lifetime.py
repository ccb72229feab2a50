"""A server from its first connection to its last, with real signals to this process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from strata.engine.fake import FakeEngine
from strata.engine.messages import EngineFailed, LoadProgress
from strata.errors import EngineError, StrataError, UsageError
from strata.server import lifetime
from strata.server.service import Service

MakeEngine = Callable[..., FakeEngine]
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Running:
    """``lifetime.run`` in a task, and what it reported."""

    engine: FakeEngine
    listener: socket.socket
    progress: asyncio.Queue[LoadProgress | None] = field(default_factory=asyncio.Queue)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, grace_seconds: int = 30) -> asyncio.Task[bool]:
        service = Service(self.engine, model_names=("tiny",))
        return asyncio.create_task(
            lifetime.run(
                service,
                self.listener,
                grace_seconds=grace_seconds,
                on_progress=self.progress.put_nowait,
                on_ready=self.ready.set,
            )
        )

    async def in_flight(self, http: httpx.AsyncClient, n: int = 1) -> asyncio.Task[httpx.Response]:
        """A chat that the engine has begun, and goes on with when it is resumed."""
        self.engine.pause()
        answer = asyncio.create_task(http.post(f"{self.url}/v1/chat/completions", json=CHAT | {"n": n}))
        await self.engine.wait_until(lambda engine: engine.num_open == n)
        return answer

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture
def running(make_engine: MakeEngine) -> Callable[..., Running]:
    return lambda *args, **options: Running(make_engine(*args, **options), socket.create_server(("127.0.0.1", 0)))


async def test_sigterm_ends_an_idle_server(running: Callable[..., Running]) -> None:
    server = running()
    task = server.start()
    await server.ready.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert server.engine.state == "closed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_requests_in_flight_end_before_the_server_does(
    running: Callable[..., Running], http: httpx.AsyncClient, number: signal.Signals
) -> None:
    """Meanwhile it says that it is not ready, and sends new requests elsewhere."""
    server = running("hello world")
    task = server.start()
    await server.ready.wait()
    url = server.url
    server.engine.pause()
    answers = [asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=CHAT | {"n": n})) for n in (1, 2)]
    await server.engine.wait_until(lambda engine: engine.num_open == 3)
    os.kill(os.getpid(), number)
    while (ready := await http.get(f"{url}/ready")).status_code == 200:
        pass
    for response in (ready, await http.post(f"{url}/v1/chat/completions", json=CHAT)):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "server_stopping"
        assert response.headers["retry-after"] == "1"
        assert response.headers["connection"] == "close"
    assert (await http.get(f"{url}/health")).status_code == 200, "a restart would not help"
    assert not any(answer.done() for answer in answers)
    server.engine.resume()
    for answer in answers:
        assert (await answer).json()["choices"][0]["message"]["content"] == "hello world"
    await task
    assert server.engine.aborted == []
    with pytest.raises(httpx.TransportError):
        await http.get(f"{url}/health")


async def test_an_engine_that_dies_while_the_server_ends_is_told(
    running: Callable[..., Running], http: httpx.AsyncClient
) -> None:
    server = running()
    task = server.start(grace_seconds=3600)
    await server.ready.wait()
    answer = await server.in_flight(http, n=2)
    os.kill(os.getpid(), signal.SIGTERM)
    while (await http.get(f"{server.url}/ready")).status_code == 200:
        pass
    server.engine.fail("signal 9")
    response = await answer
    assert response.status_code == 500
    assert "signal 9" in response.json()["error"]["message"]
    with pytest.raises(EngineError, match="signal 9"):
        await task


async def test_what_ended_the_service_is_known_after_it_was_closed(make_engine: MakeEngine) -> None:
    engine = make_engine()
    service = Service(engine, model_names=("tiny",))
    await service.backend.start()
    assert service.backend._loading is not None
    await service.backend._loading
    engine.fail("signal 9")
    await service.backend.close()
    assert isinstance(service.backend.error, EngineError)
    assert "signal 9" in str(service.backend.error)


async def test_requests_that_outlast_the_grace_are_ended(
    running: Callable[..., Running], http: httpx.AsyncClient
) -> None:
    server = running()
    task = server.start(grace_seconds=0)
    await server.ready.wait()
    answer = await server.in_flight(http)
    os.kill(os.getpid(), signal.SIGTERM)
    response = await answer
    assert response.status_code == 500
    assert "closed before the answer was complete" in response.json()["error"]["message"]
    await task


async def test_a_second_signal_ends_at_once(running: Callable[..., Running], http: httpx.AsyncClient) -> None:
    server = running()
    task = server.start(grace_seconds=3600)
    await server.ready.wait()
    answer = await server.in_flight(http)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert server.engine.state == "closed"
    answer.cancel()
    await asyncio.wait([answer])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in left if "lifespan" in repr(task)]  # it would end with a traceback


class StuckEngine(FakeEngine):
    """Ends only when it is killed, which whoever waits for its end does when he is cut short."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.closing, self.killed = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        try:
            await self.killed.wait()
        finally:
            self.killed.set()


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "after the grace"])
async def test_a_second_signal_does_not_wait_for_a_stuck_engine(
    running: Callable[..., Running], http: httpx.AsyncClient, is_idle: bool
) -> None:
    server = running(kind=StuckEngine)
    assert isinstance(server.engine, StuckEngine)
    task = server.start(grace_seconds=0)
    await server.ready.wait()
    server.engine.pause()
    if not is_idle:
        answer = await server.in_flight(http)
    os.kill(os.getpid(), signal.SIGTERM)
    await server.engine.closing.wait()
    assert not task.done()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(60):
        await task
    if not is_idle:
        answer.cancel()


@pytest.mark.parametrize(("number", "is_interrupted"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
async def test_a_server_can_be_stopped_while_it_loads(
    running: Callable[..., Running],
    http: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    number: signal.Signals,
    is_interrupted: bool,
) -> None:
    caplog.set_level(logging.INFO)
    server = running(hold_load=True)
    task = server.start()
    response = await http.get(f"{server.url}/ready")
    assert response.status_code == 503
    os.kill(os.getpid(), number)
    assert await task == is_interrupted
    assert not server.ready.is_set()
    assert "in flight" not in caplog.text


async def test_a_server_that_serves_is_not_interrupted_but_stopped(running: Callable[..., Running]) -> None:
    server = running()
    task = server.start()
    await server.ready.wait()
    os.kill(os.getpid(), signal.SIGINT)
    assert not await task


async def test_progress_is_reported_until_the_server_is_ready(running: Callable[..., Running]) -> None:
    server = running(hold_load=True, stages=(LoadProgress("load", 10, 100),))
    task = server.start()
    server.engine.next_stage()
    while await server.progress.get() != LoadProgress("load", 10, 100):
        pass
    server.engine.next_stage()
    await server.ready.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await task


@pytest.mark.parametrize(
    "kind", [pytest.param(UsageError, id="the user's fault"), pytest.param(EngineError, id="the engine's fault")]
)
async def test_a_failed_load_ends_the_server_with_its_reason(
    running: Callable[..., Running], kind: type[StrataError]
) -> None:
    server = running(load_failure=EngineFailed(kind("no config.json")))
    with pytest.raises(kind, match=r"no config\.json"):
        await server.start()


async def test_an_engine_that_dies_later_ends_the_server_and_its_requests(
    running: Callable[..., Running], http: httpx.AsyncClient
) -> None:
    server = running()
    task = server.start()
    await server.ready.wait()
    answer = await server.in_flight(http)
    server.engine.fail("signal 9")
    response = await answer
    assert response.status_code == 500
    assert "signal 9" in response.json()["error"]["message"]
    with pytest.raises(EngineError, match="signal 9"):
        await task
