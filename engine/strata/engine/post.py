"""What the event loop and the engine process say to each other, carried by two threads.

The loop neither waits for the process, which may be busy or stopped, nor reads the pipe itself: an event loop makes the
file descriptors that it watches non-blocking (uvloop does), and a ``Connection`` on such a one loses what does not pass
in one piece.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from strata.engine.messages import Command, Event

logger = logging.getLogger(__name__)


class Post:
    """Sends commands and delivers events, in their order, until the process has ended.

    on_event, on_exit: called in the event loop that made this object; on_exit once, after the last event.
    """

    def __init__(
        self,
        pipe: Connection,
        process: SpawnProcess,
        *,
        on_event: Callable[[Event], None],
        on_exit: Callable[[], None],
    ) -> None:
        self._pipe = pipe
        self._process = process
        self._on_event, self._on_exit = on_event, on_exit
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, name="engine commands", daemon=True)
        self._receiver = threading.Thread(target=self._receive_all, name="engine events", daemon=True)
        self._sender.start()
        self._receiver.start()

    def send(self, command: Command) -> None:
        """Hand over a command; returns at once. One that comes after the process' end is dropped."""
        self._commands.put(command)

    def _send_all(self) -> None:
        try:
            while (command := self._commands.get()) is not None:
                self._pipe.send(command)
        except OSError:
            logger.debug("the engine process is gone; what was to be sent is dropped")

    def _receive_all(self) -> None:
        try:
            # The pipe first: what was said before the end is heard.
            while self._pipe in wait([self._pipe, self._process.sentinel]):
                self._in_loop(self._on_event, self._pipe.recv())
        except (EOFError, OSError):
            logger.debug("the engine process has closed its end")
        self._process.join()
        self._commands.put(None)
        self._sender.join()
        self._pipe.close()
        self._in_loop(self._on_exit)

    def _in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            logger.debug("the event loop is closed; nobody hears the engine")
