"""A step loop without a model for tests of the process and the client: the real scheduler over a pretended model.

``config.model`` says how loading goes, and a token of the prompt may say how a step goes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

from strata.config import EngineConfig
from strata.engine import process
from strata.engine.messages import EngineReady, LoadProgress, Rejected, StepOutputs
from strata.engine.process import Report
from strata.errors import CheckpointError, EngineError, RequestError, StorageError
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.ngram.counts import TableCounts
from strata.request import GenerationRequest, TokenLogprobs, TokenOutput
from strata.scheduler.scheduler import Scheduler
from strata.scheduler.stats import SchedulerStats
from tests.scheduler.fake_model import EOS, VOCAB_SIZE, PagedRunner

LOAD = "tests.engine.stub_loop:load"
NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 8, 16, 128
RAISES, HANGS, STAYS, REFUSED, CHATTY = 1001, 1002, 1003, 1004, 1005  # prompt tokens with a meaning

LONG_LOGPROBS = (TokenLogprobs(-1.0, tuple((i, -i / 7) for i in range(20_000))),)  # more than a pipe's buffer holds


class StubLoop:
    def __init__(self, config: EngineConfig, *, is_gone: bool = False) -> None:
        self._is_gone = is_gone
        self._chatty: set[str] = set()
        self._num_steps = 0
        self._runner = PagedRunner(NUM_BLOCKS, BLOCK_SIZE)
        self._scheduler = Scheduler(
            config.scheduler,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(EOS,),
        )
        self.ready = EngineReady(
            store_path=config.model,
            dtype="bf16",
            device="stub",
            max_model_len=MAX_MODEL_LEN,
            num_kv_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            eos_token_ids=(EOS,),
            vocab_size=VOCAB_SIZE,
        )

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, request: GenerationRequest) -> None:
        self._scheduler.add(request)
        if CHATTY in request.prompt_token_ids:
            self._chatty.add(request.request_id)

    def abort(self, request_id: str) -> None:
        self._scheduler.abort(request_id)

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def probe(self) -> None:
        if self._is_gone:
            raise EngineError("the card does not answer")

    def expert_stats(self, *, wait: bool) -> ExpertStats | None:
        """Only when it may wait; every step needs eight experts of layer 3 and finds two of them."""
        counts = ExpertCounts(needed=8 * self._num_steps, in_vram=2 * self._num_steps)
        return ExpertStats({3: counts}, num_vram=4, num_host=16, expert_bytes=1000) if wait else None

    def step(self) -> StepOutputs:
        self._num_steps += 1
        batch = self._scheduler.schedule()
        assert batch is not None
        token_ids = {token_id for part in batch.sequences for token_id in part.token_ids}
        if RAISES in token_ids:
            raise RuntimeError("the card fell off the bus")
        if HANGS in token_ids:
            threading.Event().wait()
        if REFUSED in token_ids:  # at a step, as one whose grammar cannot be compiled
            names = [part.request_id for part in batch.sequences]
            for name in names:
                self.abort(name)
            error = RequestError("no such grammar", code="invalid_grammar")
            return StepOutputs((), self.stats(), tuple(Rejected(name, error) for name in names))
        if STAYS in token_ids:  # until it is aborted
            time.sleep(0.001)
            return StepOutputs((), self.stats())
        outputs = self._scheduler.update(batch, self._runner.run(batch))
        # Every step reads 16 rows of a table of n-grams.
        tables = TableCounts(rows=16 * self._num_steps)
        return StepOutputs(tuple(map(self._with_logprobs, outputs)), self.stats(), tables=tables)

    def _with_logprobs(self, output: TokenOutput) -> TokenOutput:
        return replace(output, logprobs=LONG_LOGPROBS) if output.request_id in self._chatty else output


def load(config: EngineConfig, report: Report) -> StubLoop:
    match config.model.partition(":"):
        case ("missing", _, path):
            raise CheckpointError(f"{path} is no model; name a store or a checkpoint directory")
        case ("full", _, path):
            raise StorageError(f"{path} has no room")
        case ("broken", _, _):
            raise RuntimeError("no kernel image")
        case ("exits", _, _):
            raise SystemExit(7)
        case ("endless", _, marker):  # loads until it is told to end, then cleans up
            try:
                while True:
                    report(LoadProgress("load", 1, 2))
            finally:
                Path(marker).unlink()
        case ("stuck", _, _):
            report(LoadProgress("load", 1, 2))
            threading.Event().wait()
    for done in range(101):
        report(LoadProgress("convert", done, 100))
    report(LoadProgress("load", 100, 100))
    if config.model == "gone":
        process.PROBE_SECONDS = 0.01
    return StubLoop(config, is_gone=config.model == "gone")
