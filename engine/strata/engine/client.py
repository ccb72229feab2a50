"""The server's side of the engine: starts the process and speaks with it. Importing it never imports torch."""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess

from strata.config import EngineConfig
from strata.engine.lifecycle import Lifecycle
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
from strata.engine.post import Post
from strata.engine.process import LEFT_TO_PARENT, run_engine
from strata.errors import EngineError, StrataError, UsageError
from strata.experts.counts import ExpertStats
from strata.ngram.counts import TableCounts
from strata.request import FinishReason, GenerationRequest, TokenOutput
from strata.scheduler.admission import check_capacity, check_id
from strata.scheduler.stats import SchedulerStats

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0  # that the process has to end by itself before it is killed
LOADING_CLOSE_SECONDS = 1.0  # likewise while it loads: then it removes what it has half written
# Of a step on a card. Experts that are read from a slow disk take minutes; a card that hangs takes for ever.
STEP_SECONDS = 900.0


class EngineClient(Lifecycle):
    """An ``Engine`` (see there) in a spawned process. All methods belong to the event loop of ``start()``.

    load: import path ``module:function`` of what loads the model inside the process. stall_seconds: a load that
    reports nothing for so long ends as failed; None lets it take any time. step_seconds: likewise of a step, on a card.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        load: str = "strata.engine.load:load_engine",
        stall_seconds: float | None = None,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        super().__init__()
        self._stall_seconds = stall_seconds
        self._step_seconds = step_seconds
        self._stall_timer: asyncio.TimerHandle | None = None
        self._config = config
        self._load = load
        self._stats: SchedulerStats | None = None
        self._experts: ExpertStats | None = None
        self._tables: TableCounts | None = None
        self._open: dict[str, asyncio.Queue[TokenOutput | StrataError]] = {}
        self._loaded = asyncio.Event()  # loading has ended, well or not
        self._exited = asyncio.Event()
        self._process: SpawnProcess | None = None
        self._post: Post | None = None

    @property
    def stats(self) -> SchedulerStats | None:
        return self._stats if self._state == "ready" else None

    @property
    def experts(self) -> ExpertStats | None:
        return self._experts if self._state == "ready" else None

    @property
    def tables(self) -> TableCounts | None:
        return self._tables if self._state == "ready" else None

    @property
    def capacity(self) -> int:
        return self._config.scheduler.capacity

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None before the start and after the end."""
        return self._process.pid if self._process is not None and not self._exited.is_set() else None

    async def start(self) -> None:
        if self._process is not None or self._state != "loading":
            raise EngineError("the engine was started before; make a new client to start another")
        context = multiprocessing.get_context("spawn")  # a fork would copy the server's threads and sockets
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=run_engine,
            args=(theirs, self._config, self._load, logging.getLogger().getEffectiveLevel()),
            name="strata-engine",
            daemon=True,
        )
        with _signals_held():
            self._process.start()
        # If close() is never called: the interpreter would end the process by SIGTERM, which it ignores, and wait.
        atexit.register(self._process.kill)
        theirs.close()  # so that the end of the process is the end of the pipe
        self._post = Post(ours, self._process, on_event=self._on_event, on_exit=self._on_exit)
        logger.info("engine process %d loads %s", self._process.pid, self._config.model)
        self._watch()

    async def wait_ready(self) -> EngineReady:
        await self._loaded.wait()
        if self._failed is not None:
            raise self._failed.error
        if self._ready is None or self._state == "closed":
            raise EngineError("the engine was closed")
        return self._ready

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        self._raise_unless_ready()
        check_id(request.request_id, self._open)
        # The engine asks as well, but only between steps: a stream refused late has its status sent already.
        check_capacity(len(self._open), self._config.scheduler)
        outputs = self._open[request.request_id] = asyncio.Queue()
        if len(self._open) == 1:
            self._watch()
        finished = False
        try:
            self._send(Submit(request))
            while not finished:
                output = await outputs.get()
                if isinstance(output, StrataError):
                    finished = True
                    raise output
                finished = output.finish_reason is not None
                yield output
        finally:
            del self._open[request.request_id]
            if not finished and self._state == "ready":
                self._send(Abort(request.request_id))

    async def close(self) -> None:
        seconds = CLOSE_SECONDS
        if self._state == "loading":
            seconds = 0.0 if self._progress is None else LOADING_CLOSE_SECONDS
        if self._state != "closed":
            self._state, self._failed = "closed", None
            self._watch()
            self._loaded.set()
            for request_id, outputs in self._open.items():
                outputs.put_nowait(TokenOutput(request_id, (), FinishReason.ABORT))
            self._send(Shutdown())
        if self._process is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        except TimeoutError:
            if seconds == CLOSE_SECONDS:
                logger.warning("engine process %d has not ended in %g s; killing it", self._process.pid, seconds)
        finally:
            if not self._exited.is_set():
                self._process.kill()
        await self._exited.wait()

    # --- inside

    def _send(self, command: Command) -> None:
        """Hand over a command. If the process is gone, ``_on_exit`` ends whatever waits for an answer."""
        if self._post is not None:
            self._post.send(command)

    def _on_event(self, event: Event) -> None:
        match event:
            case StepOutputs(outputs, stats, rejected, tables):
                self._stats, self._tables = stats, tables or self._tables
                self._watch()
                for output in outputs:
                    if output.request_id in self._open:  # else just aborted
                        self._open[output.request_id].put_nowait(output)
                for rejection in rejected:
                    self._on_event(rejection)
            case ExpertStats():
                self._experts = event
            case Rejected(request_id, error):
                if request_id in self._open:
                    self._open[request_id].put_nowait(error)
            case LoadProgress():
                self._watch()
                self._progress = event
            case EngineReady():
                if self._state == "loading":
                    self._state, self._ready = "ready", event
                    self._watch()
                    self._loaded.set()
            case EngineFailed():
                self._fail(event)

    def _on_exit(self) -> None:
        """The process has ended, and all that it said has been heard: end what waits for it."""
        assert self._process is not None
        atexit.unregister(self._process.kill)
        self._fail(EngineFailed(EngineError(_obituary(self._process.exitcode))))
        self._exited.set()

    def _watch(self) -> None:
        """Give what is under way its time from now on."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        seconds = self._patience()
        if seconds is not None:
            self._stall_timer = asyncio.get_running_loop().call_later(seconds, self._on_stall)

    def _patience(self) -> float | None:
        """Seconds without news after which the engine has failed; None: nothing is waited for."""
        if self._state == "loading":
            return self._stall_seconds
        is_stepping = self._state == "ready" and bool(self._open)
        return self._step_seconds if is_stepping and self._ready and self._ready.device != "cpu" else None

    def _on_stall(self) -> None:
        if self._patience() is None:
            return  # the last request has ended without a step
        assert self._process is not None
        self._fail(
            EngineFailed(EngineError(self._stalled_load() if self._state == "loading" else self._stalled_step()))
        )
        self._process.kill()

    def _stalled_load(self) -> str:
        last = self._progress
        where = "before the first report"
        if last is not None:
            where = f"in phase {last.phase!r}, at {last.bytes_done} of {last.bytes_total} bytes"
        return (
            f"loading got no further for {self._stall_seconds:g} s, {where}; look at the disk and the network that the "
            "model comes from, or raise --load-stall-seconds"
        )

    def _stalled_step(self) -> str:
        return f"a step has not ended for {self._step_seconds:g} s: the card hangs; see dmesg for what its driver says"

    def _fail(self, failure: EngineFailed) -> None:
        if self._state in ("failed", "closed"):
            return
        self._state, self._failed = "failed", failure
        self._watch()
        self._loaded.set()
        for outputs in self._open.values():
            outputs.put_nowait(EngineError(str(failure.error)))
        if not isinstance(failure.error, UsageError):  # that is the user's, and the command line's to say
            logger.error("the engine failed: %s", failure.error)


@contextmanager
def _signals_held() -> Iterator[None]:
    """What a process that is started meanwhile is to leave to this one waits, here until the end of the block, there
    until ``run_engine``: an interpreter that is interrupted while it imports ends with a traceback."""
    resource_tracker.ensure_running()  # starting it, as a first process does, would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obituary(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = "unknown"
        hint = "; the system may have run out of memory" if -exit_code == signal.SIGKILL else ""
        return f"the engine process was ended by signal {-exit_code} ({name}){hint}"
    return f"the engine process ended unexpectedly with exit code {exit_code}"
