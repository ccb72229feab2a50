"""The step loop: scheduler, runner and sampler in turn, one step at a time, in whatever process calls it."""

from __future__ import annotations

from strata.config import EngineConfig
from strata.engine.messages import EngineReady, StepOutputs
from strata.request import GenerationRequest
from strata.runner.runner import Runner
from strata.sampling.sampler import Sampler
from strata.scheduler.admission import check_vocabulary
from strata.scheduler.scheduler import Scheduler
from strata.scheduler.stats import SchedulerStats
from strata.store.reader import Store


class EngineLoop:
    """Requests in, tokens out: ``add()``, then ``step()`` while ``has_work``.

    Not thread-safe. An error raised by ``step()`` leaves the loop unusable.
    """

    def __init__(self, store: Store, runner: Runner, config: EngineConfig) -> None:
        model = store.model_config
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
        self._scheduler = Scheduler(
            config.scheduler,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_model_len=runner.max_model_len,
            eos_token_ids=self.ready.eos_token_ids,
        )

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended."""
        return self._scheduler.has_work

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises RequestError for one that can never be served, OverloadedError when too many wait.
        """
        check_vocabulary(request.prompt_token_ids, vocab_size=self.ready.vocab_size)
        self._scheduler.add(request)
        self._sampler.add(request.request_id, request.sampling, request.prompt_token_ids)

    def abort(self, request_id: str) -> None:
        """Drop a request and free its blocks now; one that has ended or never was is ignored."""
        if self._scheduler.abort(request_id):
            self._sampler.remove(request_id)

    def step(self) -> StepOutputs:
        """Run one step and return what it produced: nothing while prompts are prefilled, or when there is no work."""
        batch = self._scheduler.schedule()
        if batch is None:
            return StepOutputs((), self.stats())
        logits = self._runner.run(batch)
        request_ids = [sequence.request_id for sequence in batch.sequences if sequence.samples]
        token_ids = self._sampler.sample(logits, request_ids) if request_ids else []
        outputs = self._scheduler.update(batch, dict(zip(request_ids, token_ids, strict=True)))
        for output in outputs:
            if output.finish_reason is not None:
                self._sampler.remove(output.request_id)
        return StepOutputs(outputs, self.stats())

    def stats(self) -> SchedulerStats:
        """The scheduler's state now."""
        return self._scheduler.stats()

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks and requests are in order. Call it between steps."""
        self._scheduler.check_integrity()
