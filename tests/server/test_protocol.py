"""The bounds of one connection, against a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from strata.server.protocol import ARRIVAL_SECONDS, UNREAD_SECONDS, BoundedProtocol, allow_connections

SHORT = 0.01  # less than any bound
WHOLE = b"GET / HTTP/1.1\r\nHost: strata\r\n\r\n"


class Clock:
    """The running loop, but for its timers."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: dict[asyncio.TimerHandle, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self._now + delay, callback, args, asyncio.get_running_loop())
        self._timers[handle] = self._now + delay
        return handle

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due by then runs."""
        self._now += seconds
        for handle, due in list(self._timers.items()):
            if due <= self._now:
                del self._timers[handle]
                if not handle.cancelled():
                    handle._run()


class Wire(asyncio.Transport):
    """The server's side of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = False
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Connection:
    """One of a server whose answers come when ``answering`` is set."""

    def __init__(self, state: ServerState | None = None) -> None:
        self.clock, self.wire, self.answering = Clock(), Wire(), asyncio.Event()
        self.state = state or ServerState()
        config = uvicorn.Config(
            self._app, interface="asgi3", lifespan="off", log_config=None, timeout_keep_alive=round(2 * ARRIVAL_SECONDS)
        )
        config.load()
        self.protocol = BoundedProtocol(config, self.state, {}, self.clock)
        self.protocol.connection_made(self.wire)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answering.wait()
        await PlainTextResponse("answer")(scope, receive, send)

    async def answer(self) -> None:
        """Let every answer be sent."""
        self.answering.set()
        await asyncio.gather(*self.state.tasks)

    @property
    def refusal(self) -> str | None:
        """The code of the error with which the connection was closed."""
        if not self.wire.is_closed:
            return None
        code: str = json.loads(self.wire.sent.rpartition(b"\r\n\r\n")[2])["error"]["code"]
        return code


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: stra", id="half a head"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: strata\r\nContent-Length: 9\r\n\r\n{", id="half a body"),
        pytest.param(WHOLE + b"GET / HTTP/1.1\r\nHost", id="half of a second request"),
    ],
)
async def test_a_request_that_does_not_arrive_in_time_is_ended(sent: bytes) -> None:
    connection = Connection()
    connection.protocol.data_received(sent)
    if sent.startswith(WHOLE):
        await connection.answer()
    connection.clock.advance(ARRIVAL_SECONDS - SHORT)
    assert connection.refusal is None
    connection.clock.advance(SHORT)
    assert connection.refusal == "request_timeout"
    assert connection.wire.sent.rpartition(b"HTTP/1.1 ")[2].startswith(b"408 Request Timeout\r\n")
    connection.protocol.connection_lost(None)
    await connection.answer()


async def test_the_time_to_arrive_is_not_the_time_to_answer() -> None:
    connection = Connection()
    # A second request begins behind the first, and does not end while that has no answer.
    connection.protocol.data_received(WHOLE + b"POST / HTTP/1.1\r\nHost: strata\r\nContent-Length: 9\r\n\r\n{")
    for _ in range(3):
        connection.clock.advance(ARRIVAL_SECONDS)
    assert connection.wire.sent == b""
    await connection.answer()
    assert connection.wire.sent.endswith(b"answer")
    connection.clock.advance(ARRIVAL_SECONDS)
    assert connection.refusal == "request_timeout"


async def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    connection = Connection()
    connection.protocol.data_received(WHOLE)
    connection.protocol.pause_writing()
    connection.clock.advance(UNREAD_SECONDS - SHORT)
    assert not connection.wire.is_aborted
    connection.clock.advance(SHORT)
    assert connection.wire.is_aborted
    connection.protocol.connection_lost(None)
    await connection.answer()
    assert connection.wire.sent == b""


async def test_who_reads_slowly_has_time_again() -> None:
    connection = Connection()
    connection.protocol.data_received(WHOLE)
    for _ in range(3):
        connection.protocol.pause_writing()
        connection.clock.advance(UNREAD_SECONDS - SHORT)
        connection.protocol.resume_writing()
    connection.clock.advance(UNREAD_SECONDS)
    assert not connection.wire.is_aborted
    await connection.answer()
    assert connection.wire.sent.endswith(b"answer")


async def test_no_timer_outlives_its_connection() -> None:
    connection = Connection()
    connection.protocol.data_received(WHOLE)
    connection.protocol.pause_writing()
    connection.protocol.connection_lost(None)
    await connection.answer()
    connection.clock.advance(ARRIVAL_SECONDS + UNREAD_SECONDS)
    assert not connection.wire.is_aborted
    assert connection.wire.sent == b""


async def test_connections_are_held_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "max_connections", 2)
    first = Connection()
    second = Connection(first.state)
    third = Connection(first.state)
    assert (first.refusal, second.refusal, third.refusal) == (None, None, "too_many_connections")
    assert third.wire.sent.startswith(b"HTTP/1.1 503 ")
    third.protocol.connection_lost(None)
    second.protocol.connection_lost(None)
    fourth = Connection(first.state)
    assert fourth.refusal is None
    for connection in (first, fourth):
        connection.protocol.connection_lost(None)


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "allowed"),
    [
        pytest.param(1024, 524_288, 4224, 4096, id="a login's limit is raised"),
        pytest.param(1024, 1024, 1024, 896, id="no more may be had"),
        pytest.param(1_048_576, 1_048_576, None, 4096, id="a container's is enough"),
        pytest.param(resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 4096, id="none"),
        pytest.param(64, 64, 64, 1, id="next to none"),
    ],
)
def test_as_many_connections_as_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, allowed: int
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert allow_connections() == allowed
    assert asked == ([] if raised is None else [(raised, hard)])
