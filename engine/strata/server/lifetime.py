"""A server from its first connection to its last: signals, grace, and an engine that may fail in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from strata.engine.messages import LoadProgress
from strata.server.app import create_app
from strata.server.service import Service

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 0.2  # how often the state is looked at, for the progress bar and for an engine that has died
_LAST_WORDS_SECONDS = 5  # for sending errors to the clients whose requests outlasted the grace
_FORCED_SECONDS = 1  # for the engine to end by itself after a second signal
_KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections, so that they close them first


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: ``run`` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run(
    service: Service,
    listener: socket.socket,
    *,
    grace_seconds: int,
    on_progress: Callable[[LoadProgress | None], None],
    on_ready: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT; then requests in flight have ``grace_seconds`` to end. A second signal ends all.

    ``listener`` is bound already, and closed at the end. ``on_progress`` runs several times a second while loading,
    ``on_ready`` once after. Raises the StrataError that ended the service, if one did.
    """
    server = _Server(
        uvicorn.Config(
            create_app(service),
            loop="none",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watching = asyncio.create_task(_watch(service, on_progress, on_ready))

    stopping, forced = asyncio.Event(), asyncio.Event()
    stopped = asyncio.create_task(stopping.wait())

    def stop() -> None:
        if stopping.is_set():
            logger.warning("a second signal: ending now")
            forced.set()
            serving.cancel()
        else:
            logger.info("stopping: requests in flight have %d s to end", grace_seconds)
            stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await asyncio.wait({serving, watching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await asyncio.wait({serving}, timeout=grace_seconds)
        if not serving.done():
            logger.warning("the time is over: requests in flight end with an error")
            await service.close()
            await asyncio.wait({serving}, timeout=_LAST_WORDS_SECONDS)
        if watching.done():
            watching.result()
        if serving.done() and not serving.cancelled():
            serving.result()
    finally:
        for task in (serving, watching, stopped):
            task.cancel()
        await asyncio.gather(serving, watching, stopped, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FORCED_SECONDS if forced.is_set() else None):
                await service.close()  # kills the engine when it is cut short
        listener.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _watch(
    service: Service, on_progress: Callable[[LoadProgress | None], None], on_ready: Callable[[], None]
) -> None:
    """Ends only by raising what ended the service."""
    announced = False
    while True:
        error = service.error
        if error is not None:
            raise error
        if service.state == "loading":
            on_progress(service.progress)
        elif service.state == "ready" and not announced:
            announced = True
            on_ready()
        await asyncio.sleep(_WATCH_SECONDS)
