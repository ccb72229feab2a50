"""Engines in real processes, which end with the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import Any

import pytest

from strata.config import EngineConfig, SchedulerConfig
from strata.engine.client import EngineClient
from strata.engine.messages import Event
from strata.scheduler.stats import SchedulerStats
from tests.engine.stub_loop import LOAD


class WatchedClient(EngineClient):
    """A client that a test can wait for."""

    async def wait_for_stats(self, condition: Callable[[SchedulerStats], bool]) -> None:
        """Wait until the engine says of itself what fulfils ``condition``."""
        await self.wait_until(lambda: self.stats is not None and condition(self.stats))

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look at ``condition`` with every message."""
        while not condition():
            self._heard.clear()
            await self._heard.wait()

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        self._heard.set()

    @cached_property
    def _heard(self) -> asyncio.Event:
        return asyncio.Event()


StartStub = Callable[..., Awaitable[WatchedClient]]


@pytest.fixture
async def start_stub() -> AsyncIterator[StartStub]:
    """Start a client whose process runs ``stub_loop``; waits for readiness unless ``wait=False``."""
    clients: list[WatchedClient] = []

    async def start(model: str = "stub", *, wait: bool = True, **scheduler: Any) -> WatchedClient:
        client = WatchedClient(EngineConfig(model=model, scheduler=SchedulerConfig(**scheduler)), load=LOAD)
        clients.append(client)
        await client.start()
        if wait:
            await client.wait_ready()
        return client

    yield start
    for client in clients:
        await client.close()
        assert client.pid is None
