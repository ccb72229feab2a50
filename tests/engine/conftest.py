"""Engines in real processes, which end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from strata.config import EngineConfig, SchedulerConfig
from strata.engine.client import EngineClient
from tests.engine.stub_loop import LOAD

StartStub = Callable[..., Awaitable[EngineClient]]


@pytest.fixture
async def start_stub() -> AsyncIterator[StartStub]:
    """Start a client whose process runs ``stub_loop``; waits for readiness unless ``wait=False``."""
    clients: list[EngineClient] = []

    async def start(model: str = "stub", *, wait: bool = True, **scheduler: int) -> EngineClient:
        client = EngineClient(EngineConfig(model=model, scheduler=SchedulerConfig(**scheduler)), load=LOAD)
        clients.append(client)
        await client.start()
        if wait:
            await client.wait_ready()
        return client

    yield start
    for client in clients:
        await client.close()
        assert client.pid is None
