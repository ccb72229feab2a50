"""The step loop: scheduler, runner and sampler in turn, one step at a time, in whatever process calls it."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from strata.config import EngineConfig
from strata.engine.messages import EngineReady, Rejected, StepOutputs
from strata.errors import RequestError, StrataError
from strata.experts.counts import ExpertStats
from strata.request import FinishReason, GenerationRequest, TokenOutput
from strata.runner.device import probe
from strata.runner.runner import Runner
from strata.runner.step import StepResult
from strata.sampling.grammar import GrammarCompiler
from strata.sampling.sampler import RequestState, Sampler
from strata.sampling.verify import Accepted, accepted, verify
from strata.scheduler.admission import check_vocabulary
from strata.scheduler.batch import Batch
from strata.scheduler.drafts import LookupDrafter
from strata.scheduler.scheduler import Scheduler
from strata.scheduler.stats import SchedulerStats
from strata.store.reader import Store

if TYPE_CHECKING:
    from llguidance import LLMatcher

# With nothing else to do, a step waits this long for a grammar: commands are looked at between steps.
_COMPILE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that the device was given, and for whom it draws."""

    batch: Batch
    result: StepResult
    request_ids: list[str]
    requests: tuple[RequestState, ...]


class EngineLoop:
    """Requests in, tokens out: ``add()``, then ``step()`` while ``has_work``.

    Not thread-safe. An error raised by ``step()`` leaves the loop unusable.
    """

    def __init__(self, store: Store, runner: Runner, config: EngineConfig) -> None:
        model = store.model_config
        self._store = store  # stays open: the server reads its small files once this is ready
        self._runner = runner
        self._sampler = Sampler(model.vocab_size, runner.device)
        self.ready = EngineReady(
            store_path=str(store.path),
            dtype=store.dtype,
            device=runner.device_name,
            max_model_len=runner.max_model_len,
            num_kv_blocks=runner.num_blocks,
            block_size=runner.block_size,
            eos_token_ids=store.eos_token_ids,
            vocab_size=model.vocab_size,
            generation_config=store.generation_config,
        )
        self._grammars = GrammarCompiler(
            store.path / "tokenizer.json", vocab_size=model.vocab_size, eos_token_ids=store.eos_token_ids
        )
        # Requests whose grammar is being compiled, and when they came; the scheduler does not know them yet.
        self._compiling: dict[str, tuple[GenerationRequest, float, Future[LLMatcher]]] = {}
        self._ahead: _Step | None = None  # runs already; the one before it has been taken in
        self._scheduler = Scheduler(
            replace(config.scheduler, max_num_batched_tokens=runner.step_tokens),
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_model_len=runner.max_model_len,
            eos_token_ids=self.ready.eos_token_ids,
            prefix_cache=config.cache.prefix_cache,
            num_states=runner.num_states,
            num_snapshots=runner.num_snapshots,
            drafter=LookupDrafter() if runner.max_draft else None,
        )

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended."""
        return self._scheduler.has_work or bool(self._compiling)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises RequestError for one that can never be served, OverloadedError when too many wait.
        """
        check_vocabulary(request.prompt_token_ids, vocab_size=self.ready.vocab_size)
        arrived = time.monotonic()
        if request.sampling.grammar is None:
            self._admit(request, arrived)
        else:
            self._compiling[request.request_id] = request, arrived, self._grammars.compile(request.sampling.grammar)

    def abort(self, request_id: str) -> None:
        """Drop a request and free its blocks now; one that has ended or never was is ignored."""
        if request_id in self._compiling:
            _, _, future = self._compiling.pop(request_id)
            future.cancel()
        if self._scheduler.abort(request_id):
            self._sampler.remove(request_id)

    def step(self) -> StepOutputs:
        """Run one step and return what it produced: nothing while prompts are prefilled, or when there is no work."""
        rejected = self._admit_compiled() if self._compiling else ()
        late = self._end_late() if self._compiling else ()
        step, self._ahead = self._ahead, None
        if step is None or not self._scheduler.runs(step.batch):
            batch = self._scheduler.schedule()
            if batch is None:
                if self._compiling:
                    wait([future for _, _, future in self._compiling.values()], _COMPILE_SECONDS, FIRST_COMPLETED)
                return StepOutputs(late, self.stats(), rejected, self._runner.table_counts())
            step = self._launch(batch)
        drawn = self._draw(step)
        self._runner.check()
        outputs = self._scheduler.update(step.batch, drawn.token_ids)
        for output in outputs:
            if output.finish_reason is not None:
                self._sampler.remove(output.request_id)
        if drawn.logprobs:
            outputs = tuple(_with_logprobs(output, drawn) for output in outputs)
        if drawn.errors:
            rejected += tuple(
                Rejected(output.request_id, RequestError(drawn.errors[output.request_id], code="invalid_grammar"))
                for output in outputs
                if output.request_id in drawn.errors
            )
            outputs = tuple(output for output in outputs if output.request_id not in drawn.errors)
        return StepOutputs(late + outputs, self.stats(), rejected, self._runner.table_counts())

    def stats(self) -> SchedulerStats:
        """The scheduler's state now."""
        return self._scheduler.stats()

    def probe(self) -> None:
        """Raise an error if the device is gone."""
        probe(self._runner.device)

    def expert_stats(self, *, wait: bool) -> ExpertStats | None:
        """Where experts were found: news of it, see ``StepLoop``."""
        return self._runner.expert_stats(wait=wait)

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks and requests are in order. Call it between steps."""
        self._scheduler.check_integrity()

    # --- inside

    def _launch(self, batch: Batch, feed: Tensor | None = None) -> _Step:
        request_ids = [sequence.request_id for sequence in batch.sequences if sequence.samples]
        return _Step(batch, self._runner.run(batch, feed), request_ids, self._sampler.states(request_ids))

    def _draw(self, step: _Step) -> Accepted:
        """The step's tokens. Before it waits for them it gives the device the next step, if that can be; where a step
        cannot be repeated, and its tokens may turn out to be others, right after that."""
        if not step.request_ids:
            return Accepted()
        if step.batch.num_drafts:
            drafts = [sequence.drafts for sequence in step.batch.sequences if sequence.samples]
            return verify(self._sampler, step.result.logits, step.requests, drafts, step.result.best)
        drawing = self._sampler.begin(step.result.logits, step.requests, step.result.best)
        drawn = None if drawing.is_sure or self._runner.can_repeat else self._sampler.finish(drawing)
        if self._runner.runs_ahead:
            following = self._scheduler.schedule_ahead(step.batch)
            if following is not None:
                self._ahead = self._launch(following, drawing.token_ids)
        if drawn is None:
            drawn = self._sampler.finish(drawing)
            if drawing.was_wrong and self._ahead is not None:  # it began with another token
                self._ahead = self._launch(self._ahead.batch, drawing.token_ids)
        return accepted(drawn, step.requests)

    def _admit(self, request: GenerationRequest, arrived: float, matcher: LLMatcher | None = None) -> None:
        self._scheduler.add(request, arrived)
        self._sampler.add(request.request_id, request.sampling, request.prompt_token_ids, matcher)

    def _admit_compiled(self) -> tuple[Rejected, ...]:
        rejected = []
        for request_id in [request_id for request_id, (_, _, future) in self._compiling.items() if future.done()]:
            request, arrived, future = self._compiling.pop(request_id)
            try:
                self._admit(request, arrived, future.result())
            except StrataError as error:
                rejected.append(Rejected(request_id, error))
        return tuple(rejected)

    def _end_late(self) -> tuple[TokenOutput, ...]:
        """End requests whose time is over before their grammar is there; the scheduler sees to all others."""
        now = time.monotonic()
        late = [
            request.request_id
            for request, arrived, _ in self._compiling.values()
            if request.timeout_seconds is not None and arrived + request.timeout_seconds <= now
        ]
        for request_id in late:
            self.abort(request_id)
        return tuple(TokenOutput(request_id, (), FinishReason.TIMEOUT) for request_id in late)


def _with_logprobs(output: TokenOutput, drawn: Accepted) -> TokenOutput:
    logprobs = drawn.logprobs.get(output.request_id, ())
    return replace(output, logprobs=logprobs[: len(output.token_ids)])
