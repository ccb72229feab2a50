"""A server from its first connection to its last: signals, grace, and an engine that may fail in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from strata.engine.messages import LoadProgress
from strata.server.access_log import log_access
from strata.server.app import EVERYBODY, Access, create_app
from strata.server.middleware import Observer
from strata.server.protocol import BoundedProtocol, allow_connections
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


def http_config(
    service: Service, access: Access = EVERYBODY, observers: Sequence[Observer] = (log_access,)
) -> uvicorn.Config:
    """How uvicorn serves the application."""
    return uvicorn.Config(
        create_app(service, access, observers),
        loop="none",
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )


async def run(
    service: Service,
    listener: socket.socket,
    *,
    access: Access = EVERYBODY,
    observers: Sequence[Observer] = (log_access,),
    grace_seconds: int,
    on_progress: Callable[[LoadProgress | None], None],
    on_ready: Callable[[], None],
) -> bool:
    """Serve until SIGTERM or SIGINT; then requests in flight have ``grace_seconds`` to end. A second signal ends all.
    Returns whether SIGINT came while the model was loading, so that nothing was ever served.

    While they end, the server still listens: ``/ready`` says that it is not, and new requests are told to go elsewhere.
    ``listener`` is bound already, and closed at the end. ``on_progress`` runs several times a second while loading,
    ``on_ready`` once after. Raises the StrataError that ended the service, if one did.
    """
    BoundedProtocol.max_connections = allow_connections()
    server = _Server(http_config(service, access, observers))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watching = asyncio.create_task(_watch(service, on_progress, on_ready))
    with _signals(service, grace_seconds) as (stopped, forced):
        try:
            await _first_of(serving, watching, stopped)
            loop = asyncio.get_running_loop()
            until = loop.time() + grace_seconds
            if stopped.done():
                draining = asyncio.create_task(service.drain())
                await _first_of(draining, serving, watching, forced, seconds=grace_seconds)
                await _cancel(draining)
            server.should_exit = True
            await _first_of(serving, forced, seconds=max(0, until - loop.time()))
            if not serving.done() and not forced.done():
                logger.warning("the time is over: requests in flight end with an error")
                await _first_of(asyncio.create_task(service.backend.close()), forced)
                await _first_of(serving, forced, seconds=_LAST_WORDS_SECONDS)
            for task in (watching, serving):
                if task.done():
                    task.result()
            if service.backend.error is not None:  # nobody may have looked since
                raise service.backend.error
            return stopped.done() and stopped.result()
        finally:
            await _cancel(serving, watching)
            await _close(service, forced)
            await _end_lifespan(server)
            listener.close()


async def _close(service: Service, forced: asyncio.Future[bool]) -> None:
    """End the engine, by force as soon as ``forced`` is done."""
    closing = asyncio.create_task(service.backend.close())
    await _first_of(closing, forced)
    await _first_of(closing, seconds=_FORCED_SECONDS)
    await _cancel(closing)  # an engine that still runs is killed


async def _end_lifespan(server: uvicorn.Server) -> None:
    """Where uvicorn was not let to end by itself, the application still waits to hear of the end."""
    if hasattr(server, "lifespan"):
        await _first_of(asyncio.create_task(server.lifespan.shutdown()), seconds=_FORCED_SECONDS)


@contextlib.contextmanager
def _signals(service: Service, grace_seconds: int) -> Iterator[tuple[asyncio.Future[bool], asyncio.Future[bool]]]:
    """Two futures: the first SIGTERM or SIGINT ends one, with whether it was SIGINT while the model was loading; the
    second ends the other."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[bool] = loop.create_future()
    forced: asyncio.Future[bool] = loop.create_future()

    def stop(number: int) -> None:
        is_loading = service.backend.state == "loading"
        if not stopped.done():
            if is_loading:
                logger.info("stopping before the model is loaded")
            else:
                logger.info("stopping: requests in flight have %d s to end", grace_seconds)
            stopped.set_result(is_loading and number == signal.SIGINT)
        elif not forced.done():
            logger.warning("a second signal: ending now")
            forced.set_result(True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped, forced
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _first_of(*waited: asyncio.Future[Any], seconds: float | None = None) -> None:
    await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(
    service: Service, on_progress: Callable[[LoadProgress | None], None], on_ready: Callable[[], None]
) -> None:
    """Ends only by raising what ended the service."""
    announced = False
    while True:
        error = service.backend.error
        if error is not None:
            raise error
        if service.backend.state == "loading":
            on_progress(service.backend.engine.progress)
        elif service.backend.state == "ready" and not announced:
            announced = True
            on_ready()
        await asyncio.sleep(_WATCH_SECONDS)
