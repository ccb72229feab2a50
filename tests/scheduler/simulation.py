"""A scheduler over the pretended model, with a clock of its own; checks every step."""

from __future__ import annotations

from dataclasses import replace

from strata.config import SchedulerConfig
from strata.errors import OverloadedError
from strata.request import FinishReason, GenerationRequest, TokenOutput
from strata.scheduler.batch import Batch
from strata.scheduler.drafts import Drafter
from strata.scheduler.scheduler import PRIORITY_SECONDS, Scheduler
from tests.scheduler.fake_model import EOS, PagedRunner

STEP_SECONDS, TOKEN_SECONDS = 0.01, 0.002  # what a step takes, and what each of its tokens adds


class Simulation:
    """``add()`` and ``abort()`` between steps, ``step()`` until ``done``; what became of all is in the dictionaries."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 40,
        prefix_cache: bool = True,
        ahead: bool = False,
        num_states: int = 0,
        num_snapshots: int = 0,
        drafter: Drafter | None = None,
    ) -> None:
        """``ahead``: a step is planned while the one before it runs, wherever the scheduler can. ``num_states``: of a
        model that has some; ``num_snapshots``: that are kept."""
        self.config = config
        self.max_model_len = max_model_len
        self.ahead = ahead
        self.num_ahead = 0  # steps that were
        # The step that was planned ahead, and what it draws.
        self._running: tuple[Batch, dict[str, tuple[int, ...]]] | None = None
        self.now = 1000.0
        self.plan = Scheduler(
            config,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            eos_token_ids=(EOS,),
            prefix_cache=prefix_cache,
            num_states=num_states,
            num_snapshots=num_snapshots,
            drafter=drafter,
            clock=lambda: self.now,
        )
        self.runner = PagedRunner(num_blocks, block_size, num_states + num_snapshots)
        self.requests: dict[str, GenerationRequest] = {}  # those that were let in
        self.generated: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}  # num_cached_tokens, from the first output on
        self.ended: dict[str, FinishReason] = {}
        self._orders: dict[str, tuple[float, int]] = {}
        self._deadlines: dict[str, float] = {}
        self._computed: dict[str, int] = {}

    @property
    def done(self) -> bool:
        return not self.plan.has_work

    def add(self, request: GenerationRequest) -> None:
        """Raises what the scheduler raises."""
        num_in_flight = len(self.requests) - len(self.ended)
        try:
            self.plan.add(request)
        except OverloadedError:
            assert num_in_flight == self.config.max_num_seqs + self.config.max_waiting
            raise
        name = request.request_id
        self.requests[name] = request
        self.generated[name] = []
        self._orders[name] = (self.now + PRIORITY_SECONDS * max(-100, min(request.priority, 100)), len(self._orders))
        if request.timeout_seconds is not None:
            self._deadlines[name] = self.now + request.timeout_seconds

    def abort(self, name: str) -> None:
        assert self.plan.abort(name) == (name not in self.ended)
        self.ended.setdefault(name, FinishReason.ABORT)
        self.plan.check_integrity()

    def step(self) -> Batch:
        """One step; there must be work."""
        if self._running is not None and self.plan.runs(self._running[0]):
            batch, drawn = self._running
        else:
            batch, drawn = self._begin()
        self._running = None
        following = self.plan.schedule_ahead(batch) if self.ahead else None
        if following is not None:
            self._check_ahead(following, batch)
            self.num_ahead += 1
            self._running = following, self._run(following, drawn, batch)
        self.now += STEP_SECONDS + TOKEN_SECONDS * batch.num_tokens
        for part in batch.sequences:
            wrong = part.num_drafts + 1 - len(drawn[part.request_id]) if part.num_drafts else 0
            self._computed[part.request_id] = part.end - wrong
        outputs = self.plan.update(batch, drawn)
        assert len({output.request_id for output in outputs}) == len(outputs)
        for output in outputs:
            self._take(output)
        late = {name for name, deadline in self._deadlines.items() if deadline <= self.now}
        assert late <= self.ended.keys(), "a request outlives its time by more than a step"
        self.plan.check_integrity()
        return batch

    def _begin(self) -> tuple[Batch, dict[str, tuple[int, ...]]]:
        running = {sequence.request_id for sequence in self.plan._running}
        batch = self.plan.schedule()
        assert batch is not None, "requests wait, but nothing runs"
        self._check_order(batch, running)
        self._check_parts(batch)
        return batch, self.runner.run(batch)

    def _run(self, batch: Batch, drawn: dict[str, tuple[int, ...]], before: Batch) -> dict[str, tuple[int, ...]]:
        """Run a step whose tokens are those that the step before drew."""
        sampling = [part.request_id for part in before.sequences if part.samples]
        known = []
        for part in batch.sequences:
            assert part.source is not None
            assert sampling[part.source] == part.request_id
            known.append(replace(part, token_ids=drawn[part.request_id]))
        return self.runner.run(Batch(tuple(known)))

    def _check_ahead(self, batch: Batch, before: Batch) -> None:
        """One token more of sequences of the step before, each written to a block of its own alone."""
        ends = {part.request_id: part.end for part in before.sequences if part.samples}
        assert len(batch.sequences) == len({part.request_id for part in batch.sequences})
        users = [block for part in batch.sequences for block in part.block_ids]
        for part in batch.sequences:
            request = self.requests[part.request_id]
            num_drawn = len(self.generated[part.request_id])
            assert num_drawn + 1 < request.sampling.max_tokens, "the step before draws its last token"
            assert (part.token_ids, part.start, part.samples) == ((0,), ends[part.request_id], True)
            assert len(part.block_ids) == -(-part.end // self.runner.block_size)
            assert users.count(part.block_ids[part.start // self.runner.block_size]) == 1

    def run(self, max_steps: int = 10_000) -> None:
        """Step until all have ended."""
        while not self.done:
            assert max_steps > 0, "a request starves"
            max_steps -= 1
            self.step()

    def _take(self, output: TokenOutput) -> None:
        name = output.request_id
        assert name not in self.ended, "an ended request has an output"
        self.generated[name] += output.token_ids
        assert self.cached.setdefault(name, output.num_cached_tokens) == output.num_cached_tokens
        if output.finish_reason is not None:
            self.ended[name] = output.finish_reason
        if output.finish_reason is FinishReason.TIMEOUT:
            assert self._deadlines[name] <= self.now, "ended before its time was over"

    def _check_order(self, batch: Batch, running_before: set[str]) -> None:
        running = {sequence.request_id: self._orders[sequence.request_id] for sequence in self.plan._running}
        waiting = {sequence.request_id: self._orders[sequence.request_id] for sequence in self.plan._waiting}
        for name in running.keys() - running_before:
            assert all(running[name] < order for order in waiting.values()), "let in past one that waits"
        for name in waiting.keys() & running_before:
            assert all(order < waiting[name] for order in running.values()), "preempted for one that comes later"
        first = min(running, key=lambda name: running[name])
        # A newcomer may wait for a block that another one fills in this step.
        assert first in {part.request_id for part in batch.sequences} or first not in running_before, "no progress"

    def _check_parts(self, batch: Batch) -> None:
        """A step keeps its limits; each part goes on where the cache ends, and writes to blocks of its own alone."""
        size = self.runner.block_size
        assert 1 <= batch.num_tokens <= self.config.step_tokens
        assert sum(part.num_sampled for part in batch.sequences) <= self.config.max_sampled
        assert len(batch.sequences) <= self.config.max_num_seqs
        names = [part.request_id for part in batch.sequences]
        assert len(set(names)) == len(names)
        assert not self.ended.keys() & set(names), "an ended request runs"
        slots = [part.state_slot for part in batch.sequences if part.state_slot is not None]
        assert len(slots) == (len(batch.sequences) if self.runner.states else 0)
        assert len(set(slots)) == len(slots), "two sequences have one state"
        users = [block for part in batch.sequences for block in part.block_ids]
        for part in batch.sequences:
            tokens = [*self.requests[part.request_id].prompt_token_ids, *self.generated[part.request_id]]
            assert part.token_ids, "an empty part"
            known = part.end - part.num_drafts
            assert list(part.token_ids) == [*tokens[part.start : known], *part.drafts]
            assert part.end < self.max_model_len
            assert (
                len(self.generated[part.request_id]) + part.num_sampled
                <= self.requests[part.request_id].sampling.max_tokens
            )
            assert part.start % size == 0 or part.start == self._computed[part.request_id]
            assert len(part.block_ids) == -(-part.end // size)
            assert part.samples == (known == len(tokens))
            written = part.block_ids[part.start // size :]
            assert all(users.count(block) == 1 for block in written), "a block is written that another request uses"
