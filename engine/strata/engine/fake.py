"""A deterministic engine without a model, for tests of whatever stands above it.

    engine = FakeEngine(script=lambda request: [5, 6, 7])    # every request gets 5 6 7 and the end-of-sequence token
    engine.pause()                                           # ... and now one token a request at each release()

Nothing sleeps: a test says when a load stage ends, when tokens come, and when the engine fails. The methods that steer
the fake may be called from any thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import log

from strata.config import SchedulerConfig
from strata.engine.lifecycle import Lifecycle
from strata.engine.messages import EngineFailed, EngineReady, LoadProgress
from strata.errors import EngineError, OverloadedError, StrataError
from strata.experts.counts import ExpertStats
from strata.ngram.counts import TableCounts
from strata.request import FinishReason, GenerationRequest, TokenLogprobs, TokenOutput
from strata.scheduler.admission import check_id
from strata.scheduler.stats import SchedulerStats
from strata.scheduler.stopping import finish_reason

Script = Callable[[GenerationRequest], Iterable[int]]

FAKE_READY = EngineReady(
    store_path="fake",
    dtype="bf16",
    device="fake",
    max_model_len=256,
    num_kv_blocks=64,
    block_size=16,
    eos_token_ids=(0,),
    vocab_size=1024,
)


def echo(request: GenerationRequest) -> Iterable[int]:
    """The script that answers with the prompt."""
    return request.prompt_token_ids


def _logprobs(token_id: int, request: GenerationRequest) -> tuple[TokenLogprobs, ...]:
    """The token halves the probability that is left, and so does each of those below it, which are the next likely."""
    num_top = request.sampling.logprobs
    if num_top is None:
        return ()
    top = tuple((token_id - place, log(0.5) * (place + 1)) for place in range(min(num_top, token_id + 1)))
    return (TokenLogprobs(log(0.5), top),)


class FakeEngine(Lifecycle):
    """An ``Engine`` whose tokens come from a script.

    script: the tokens of an answer; the first end-of-sequence id of ``ready`` follows them if they run out.
    ready: what the engine says of its model. stages: reports of loading. hold_load: stay "loading" until
    ``next_stage()`` has been called once for every stage and once more; else ``start()`` runs through all of them.
    load_failure: loading ends in this instead of readiness. max_open: requests at a time, then OverloadedError; None
    takes what an engine takes that is not told otherwise. experts, tables: what it says of them while it is
    ready. num_states: slots for states of linear attention that it says it has.
    """

    def __init__(
        self,
        script: Script = echo,
        *,
        ready: EngineReady = FAKE_READY,
        stages: Sequence[LoadProgress] = (LoadProgress("load", 0, 100), LoadProgress("load", 100, 100)),
        hold_load: bool = False,
        load_failure: EngineFailed | None = None,
        max_open: int | None = None,
        experts: ExpertStats | None = None,
        tables: TableCounts | None = None,
        num_states: int = 0,
    ) -> None:
        super().__init__()
        self.requests: list[GenerationRequest] = []  # every request that was let in, in order
        self.aborted: list[str] = []  # ids of requests whose iterator was closed before its end
        self._script = script
        self._facts = ready
        self._stages = list(stages)
        self._hold_load = hold_load
        self._load_failure = load_failure
        self._max_open = SchedulerConfig().capacity if max_open is None else max_open
        self._experts = experts
        self._tables = tables
        self._num_states = num_states
        self._rejection: StrataError | None = None
        self._open: dict[str, int] = {}  # request id to tokens of prompt and output
        self._released: int | None = None  # tokens that each request may have got; None: no limit
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- what a test steers

    def next_stage(self) -> None:
        """End the present stage of loading: report the next one, or after the last become ready (or fail)."""
        if self._state != "loading":
            return
        if self._stages:
            self._progress = self._stages.pop(0)
        elif self._load_failure is not None:
            self._state, self._failed = "failed", self._load_failure
        else:
            self._state, self._ready = "ready", self._facts
        self._wake()

    def pause(self) -> None:
        """Give no tokens from now on; open requests wait, as do new ones, for ``release()`` or ``resume()``."""
        self._released = 0

    def release(self, num_tokens: int = 1) -> None:
        """After ``pause()``: let every request, open or new, have this many tokens more than before."""
        self._released = (self._released or 0) + num_tokens
        self._wake()

    def resume(self) -> None:
        """Undo ``pause()``."""
        self._released = None
        self._wake()

    def fail(self, message: str = "the engine process ended with signal 9") -> None:
        """Fail as if the process had died: every open request raises EngineError."""
        self._state, self._failed = "failed", EngineFailed(EngineError(message))
        self._wake()

    def reject_next(self, error: StrataError) -> None:
        """Raise ``error`` from the next request."""
        self._rejection = error

    @property
    def num_open(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._open)

    async def wait_until(self, condition: Callable[[FakeEngine], bool]) -> None:
        """Wait until ``condition(self)`` holds, e.g. ``lambda engine: engine.aborted``."""
        while not condition(self):
            await self._change()

    # --- Engine

    @property
    def stats(self) -> SchedulerStats | None:
        if self._state != "ready":
            return None
        block_size, total = self._facts.block_size, self._facts.num_kv_blocks
        used = sum(-(-num_tokens // block_size) for num_tokens in self._open.values())
        running, states = len(self._open), self._num_states
        return SchedulerStats(
            running, 0, total - used, total, 0, num_used_states=min(running, states), num_total_states=states
        )

    @property
    def experts(self) -> ExpertStats | None:
        return self._experts if self._state == "ready" else None

    @property
    def tables(self) -> TableCounts | None:
        return self._tables if self._state == "ready" else None

    @property
    def capacity(self) -> int:
        return self._max_open

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not self._hold_load and self._state == "loading":
            self.next_stage()

    async def wait_ready(self) -> EngineReady:
        await self.wait_until(lambda engine: engine.state != "loading")
        if self._failed is not None:
            raise self._failed.error
        self._raise_unless_ready()
        return self._facts

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        self._admit(request)
        began = time.monotonic()
        finished = False
        try:
            for generated, token_id in enumerate(self._tokens(request), start=1):
                await self._wait_for_turn(generated)
                if self._state == "closed":
                    finished = True
                    yield TokenOutput(request.request_id, (), FinishReason.ABORT)
                    return
                self._raise_unless_ready()
                self._open[request.request_id] += 1
                reason = finish_reason(
                    token_id,
                    num_generated=generated,
                    num_tokens=self._open[request.request_id],
                    sampling=request.sampling,
                    eos_token_ids=self._facts.eos_token_ids,
                    max_model_len=self._facts.max_model_len,
                )
                finished = reason is not None
                logprobs = _logprobs(token_id, request)
                yield TokenOutput(request.request_id, (token_id,), reason, logprobs=logprobs, began=began)
                if finished:
                    return
        finally:
            del self._open[request.request_id]
            if not finished and self._state == "ready":
                self.aborted.append(request.request_id)
            self._wake()

    async def close(self) -> None:
        self._state, self._failed = "closed", None
        self._wake()

    # --- inside

    def _admit(self, request: GenerationRequest) -> None:
        self._raise_unless_ready()
        if self._rejection is not None:
            error, self._rejection = self._rejection, None
            raise error
        check_id(request.request_id, self._open)
        if len(self._open) >= self._max_open:
            raise OverloadedError(f"{len(self._open)} requests are in flight, {self._max_open} are allowed; try later")
        self.requests.append(request)
        self._open[request.request_id] = len(request.prompt_token_ids)
        self._wake()

    def _tokens(self, request: GenerationRequest) -> Iterator[int]:
        end = self._facts.eos_token_ids[:1]
        # With ``ignore_eos``, or without such a token, the answer goes on to its limit.
        return chain(self._script(request), iter(lambda: end[0] if end else 1, None))

    async def _wait_for_turn(self, generated: int) -> None:
        while self._state == "ready" and self._released is not None and generated > self._released:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)
