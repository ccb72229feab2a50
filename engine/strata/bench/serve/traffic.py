"""When requests are sent: as soon as another one ends (closed loop), or at random times (open loop)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from itertools import accumulate
from typing import Any, TypeVar

T = TypeVar("T")
Send = Callable[[T], Coroutine[Any, Any, None]]


async def closed_loop(requests: Sequence[T], send: Send[T], *, concurrency: int) -> None:
    """Keep ``concurrency`` requests in flight until all have been sent and answered."""
    left = iter(requests)

    async def stream() -> None:
        for request in left:
            await send(request)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(requests))):
            group.create_task(stream())


async def open_loop(requests: Sequence[T], send: Send[T], *, rate: float, rng: random.Random) -> None:
    """Send ``rate`` requests a second on average, however many are in flight; wait for all answers."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with asyncio.TaskGroup() as group:
        for request, due in zip(requests, arrivals(len(requests), rate, rng), strict=True):
            await asyncio.sleep(begin + due - loop.time())
            group.create_task(send(request))


def arrivals(count: int, rate: float, rng: random.Random) -> list[float]:
    """Seconds at which a Poisson process of ``rate`` events a second has its first ``count``; the first is at once."""
    gaps = (rng.expovariate(rate) for _ in range(count - 1))
    return list(accumulate(gaps, initial=0.0))
