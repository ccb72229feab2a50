"""The engine's process: load, then step for as long as there is work, and sleep when there is none.

The main thread loads and steps; a second one takes commands from the pipe, so that the parent never waits for a step,
and its death is seen even in the middle of one. The engine does wait for the parent, which reads all the time, when the
pipe is full of outputs. The process ends after ``Shutdown``, after a failure (which it reports), or when its parent is
gone.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Protocol, cast

from strata.config import EngineConfig
from strata.engine import logs
from strata.engine.messages import (
    Abort,
    Command,
    EngineFailed,
    EngineReady,
    Event,
    LoadProgress,
    Rejected,
    Shutdown,
    StepOutputs,
    Submit,
)
from strata.errors import EngineError, StrataError, UsageError
from strata.experts.counts import ExpertStats
from strata.request import GenerationRequest
from strata.runner.threads import spin_briefly
from strata.scheduler.stats import SchedulerStats

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.1  # between two reports of the same phase
PROBE_SECONDS = 10.0  # between two looks at a device that has nothing to do
ORPHAN_SECONDS = 3.0  # that loading or a step may go on after the parent's death

# Ctrl-C and a service manager's SIGTERM reach the whole group; the parent decides what they mean, and ends this.
LEFT_TO_PARENT = (signal.SIGINT, signal.SIGTERM)

Report = Callable[[LoadProgress], None]


class StepLoop(Protocol):
    """What the process drives: ``strata.engine.loop.EngineLoop``, or a stand-in for tests."""

    @property
    def ready(self) -> EngineReady:
        """Facts about the loaded model."""

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended."""

    def add(self, request: GenerationRequest) -> None:
        """Queue a request; raises RequestError or OverloadedError."""

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is there."""

    def step(self) -> StepOutputs:
        """Run one step. Any error is the end of the engine."""

    def stats(self) -> SchedulerStats:
        """The state between steps."""

    def probe(self) -> None:
        """Raise an error if the device is gone. Asked while there is nothing to do: a step finds it out itself."""

    def expert_stats(self, *, wait: bool) -> ExpertStats | None:
        """News of where experts were found: with ``wait``, once the device has done all that it was given; else if they
        are there, at the cost of no wait. None always for a model whose experts are always in one place."""


Load = Callable[[EngineConfig, Report], StepLoop]


def run_engine(pipe: Connection, config: EngineConfig, load: str, log_level: int) -> None:
    """The process's main function. ``load`` is the import path ``module:function`` of a ``Load``."""
    for number in LEFT_TO_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_PARENT)  # the parent has held them back until here
    logs.configure(log_level)
    faulthandler.enable()  # a crash in native code leaves a trace
    spin_briefly()
    inbox = _Inbox(pipe)
    inbox.start()
    try:
        module, _, function = load.partition(":")
        loop = cast("Load", getattr(importlib.import_module(module), function))(config, _throttled(pipe, inbox))
        pipe.send(StepOutputs((), loop.stats()))  # first: who sees the engine ready sees its state too
        if (experts := loop.expert_stats(wait=True)) is not None:
            pipe.send(experts)
        pipe.send(loop.ready)
        _serve(loop, inbox, pipe.send)
    except (_ClosedError, BrokenPipeError, ConnectionResetError):
        logger.debug("closed")
    except UsageError as error:
        _end(pipe, EngineFailed(error))
    except Exception as error:
        logger.exception("the engine failed")
        own = error if isinstance(error, StrataError) else EngineError(f"{type(error).__name__}: {error}")
        _end(pipe, EngineFailed(own))


def _serve(loop: StepLoop, inbox: _Inbox, send: Callable[[Event], None]) -> None:
    while True:
        is_idle = not loop.has_work
        commands = tuple(inbox.drain(seconds=PROBE_SECONDS if is_idle else 0.0))
        if is_idle and not commands:
            loop.probe()
            continue
        for command in commands:
            match command:
                case Submit(request):
                    try:
                        loop.add(request)
                    except StrataError as error:
                        send(Rejected(request.request_id, error))
                case Abort(request_id):
                    loop.abort(request_id)
                case Shutdown():
                    return
        # With nothing left to run, an abort still changed the state.
        send(loop.step() if loop.has_work else StepOutputs((), loop.stats()))
        # The wait costs nobody anything: there is nothing to do, and the tokens are on their way.
        if (experts := loop.expert_stats(wait=not loop.has_work)) is not None:
            send(experts)


def _throttled(pipe: Connection, inbox: _Inbox) -> Report:
    """Sends the first and last report of a phase and about ten a second between; ends loading when asked to.

    A report that says the same again is sent too: it says that loading goes on.
    """
    last = LoadProgress("", 0, 0)
    sent_at = 0.0

    def report(progress: LoadProgress) -> None:
        nonlocal last, sent_at
        if inbox.closing:
            raise _ClosedError
        now = time.monotonic()
        is_edge = progress.phase != last.phase or progress.bytes_done >= progress.bytes_total
        if (is_edge and progress != last) or now - sent_at >= PROGRESS_SECONDS:
            pipe.send(progress)
            last, sent_at = progress, now

    return report


def _end(pipe: Connection, failure: EngineFailed) -> None:
    try:
        pipe.send(failure)
    except OSError:  # the parent has gone meanwhile
        logger.debug("nobody hears of: %s", failure.error)
    sys.exit(2 if isinstance(failure.error, UsageError) else 1)


class _ClosedError(BaseException):
    """Ends loading; not an Exception, so that nobody on the way handles it."""


class _Inbox(threading.Thread):
    """Takes commands from the pipe as they come."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(name="commands", daemon=True)
        self.closing = False  # Shutdown has come, or the parent is gone
        self._pipe = pipe
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def drain(self, *, seconds: float) -> Iterator[Command]:
        """The commands that have come; sleeps so long until there is one."""
        try:
            yield self._commands.get(block=seconds > 0, timeout=seconds or None)
            while True:
                yield self._commands.get_nowait()
        except queue.Empty:
            return

    def run(self) -> None:
        try:
            while True:
                command = self._pipe.recv()
                self.closing = self.closing or isinstance(command, Shutdown)
                self._commands.put(command)
        except (EOFError, OSError):
            logger.debug("the parent is gone")
        except Exception:
            logger.exception("the engine cannot read what it is told")
        # Without this thread nobody would hear of the parent's end.
        self.closing = True
        self._commands.put(Shutdown())
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)  # the main thread is stuck
