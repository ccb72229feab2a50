"""Continuous batching: which tokens of which requests run in the next step.

A request waits, runs, and ends; a running one may be preempted, which puts it back into the queue. Requests have one
fixed order: that of arrival, where a level of priority counts as ``PRIORITY_SECONDS`` of waiting. Blocks are taken from
the last for the first, and nothing is let in past a request that has to wait. The first of the running requests
therefore makes progress in every step (but may wait for another's block in that in which it is let in), and since it
ends, so does each of the others: only those that come before it in that order pass a request, and these have an end.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import insort
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise, takewhile

from strata.config import SchedulerConfig
from strata.request import FinishReason, GenerationRequest, TokenOutput
from strata.scheduler.admission import check_capacity, check_config, check_request
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.scheduler.chunk import ChunkController
from strata.scheduler.drafts import Drafter
from strata.scheduler.kv import SequenceCache
from strata.scheduler.sequence import Sequence
from strata.scheduler.stats import SchedulerStats, WaitReason
from strata.scheduler.stopping import finish_reason

logger = logging.getLogger(__name__)

PRIORITY_SECONDS = 10.0  # of waiting outweigh one level of priority
MAX_PRIORITY = 100  # and as far below 0; what lies beyond counts as this, so that nobody waits for ever

NOT_FINITE = (
    "no token can be drawn for this request: the model's output is not finite (NaN or infinite). A repetition_penalty "
    "far from 1 can do that; where requests without one fail too, the weights are unsound"
)


class Scheduler:
    """Plans steps: ``schedule()``, run the batch, draw a token for each sequence that samples, ``update()``, again.
    ``schedule_ahead()`` may plan the step after one that still runs.

    num_blocks, block_size: the KV pool. max_model_len: tokens of prompt and output together that end a request.
    prefix_cache: whether requests that begin alike share blocks. num_states: requests that may have a state of linear
    attention, and therefore run; 0 for a model that has none. num_snapshots: states that may be kept, without which
    requests of such a model share nothing. drafter: of tokens that are run beside those that are known; None: there are
    no drafts. clock: seconds, for deadlines, the order of arrival and the time of a step, which lasts from
    ``schedule()`` to ``update()``. Raises OptionError for limits under which nothing could run.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
        prefix_cache: bool = True,
        num_states: int = 0,
        num_snapshots: int = 0,
        drafter: Drafter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_config(config)
        self._config = config
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._clock = clock
        self._max_running = min(config.max_num_seqs, num_states or config.max_num_seqs)
        self._cache = SequenceCache(
            num_blocks,
            block_size,
            share_prefixes=prefix_cache,
            num_states=num_states,
            num_snapshots=num_snapshots,
        )
        self._drafter = drafter
        self._num_drafted = 0
        self._num_accepted = 0
        self._chunk = ChunkController(config.decode_latency_seconds, config.step_tokens)
        self._sequences: dict[str, Sequence] = {}  # every request that has not ended
        self._waiting: list[Sequence] = []  # in their order, as are those that run
        self._running: list[Sequence] = []
        self._waiting_for = WaitReason.MAX_NUM_SEQS  # what the first of them lacked when the last step was planned
        self._step_began = 0.0
        self._step_seconds = 0.0
        self._num_added = 0
        self._num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._sequences)

    def add(self, request: GenerationRequest, arrived: float | None = None) -> None:
        """Queue a request. ``arrived``: when it came, in seconds of the clock; None is now.

        Raises RequestError if it could not run even alone, OverloadedError if ``max_waiting`` requests wait already.
        """
        check_request(
            request,
            self._sequences,
            max_model_len=self._max_model_len,
            num_kv_tokens=self._cache.blocks.num_blocks * self._cache.blocks.block_size,
        )
        check_capacity(len(self._sequences), self._config)
        now = self._clock() if arrived is None else arrived
        timeout = math.inf if request.timeout_seconds is None else request.timeout_seconds
        priority = max(-MAX_PRIORITY, min(request.priority, MAX_PRIORITY))
        self._num_added += 1
        order = (now + priority * PRIORITY_SECONDS, self._num_added)
        sequence = Sequence(request, order, now + timeout, self._cache.blocks.block_size)
        self._sequences[request.request_id] = sequence
        insort(self._waiting, sequence, key=_order)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks and state now; False if it has ended or was never there.

        A step that still runs may write to them, and ends before any later one begins.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return False
        self._end(sequence)
        return True

    def schedule(self) -> Batch | None:
        """The next step, None when no request is left: one token of each decoding sequence, then prefill chunks."""
        self._step_began = self._clock()
        num_decoding = sum(sequence.num_pending == 1 for sequence in self._running)
        budget = self._config.step_tokens - num_decoding
        if num_decoding:
            budget = min(budget, self._chunk.limit)
        decoding: list[ScheduledSequence] = []
        prefill: list[ScheduledSequence] = []
        coming: set[bytes] = set()  # keys of what others can share from the next step on
        # Those preempted on the way leave ``_running`` from its end, which ends the iteration early.
        for sequence in self._running:
            if sequence.num_pending == 1:
                if self._make_room(sequence, len(sequence.token_ids)):
                    decoding.append(self._part(sequence, len(sequence.token_ids)))
            elif budget and (part := self._chunk_of(sequence, budget, num_decoding, coming)):
                prefill.append(part)
                budget -= len(part.token_ids)
        while admitted := self._admit_next(budget):
            if part := self._chunk_of(admitted, budget, num_decoding, coming):
                prefill.append(part)
                budget -= len(part.token_ids)
        if self._drafter is not None and decoding and not prefill:
            decoding = self._with_drafts(self._drafter, decoding)
        step = (*decoding, *prefill)
        return Batch(step, *self._cache.take_copies()) if step else None

    def schedule_ahead(self, batch: Batch) -> Batch | None:
        """The step after ``batch``, which runs and is not taken in yet: the token that it draws for each sequence,
        wherever that is not known to be its last.

        None where it takes more than these tokens to decide what is next: a prompt to go on with, a request to let in,
        a sequence that has to give way, drafts in this step or the next one. A sequence that turns out to have
        ended runs in vain: ``update()`` drops what is drawn for it.
        """
        sampling = [(self._found(part), part) for part in batch.sequences if part.samples]
        found = [sequence for sequence, _ in sampling if sequence is not None]
        staying = [sequence for sequence in found if not self._ends_after_next(sequence)]
        if not staying or len(found) < len(self._running):
            return None
        if self._waiting:
            lack = self._lack_of(self._waiting[0], self._config.step_tokens - len(staying))
            if lack is None or len(staying) < len(found):
                return None
            self._waiting_for = lack
        if self._drafter is not None and (
            batch.num_drafts or self._drafter.wants(staying, self._config.max_sampled - len(staying))
        ):
            return None
        if self._cache.num_missing_for(staying, 1) > self._cache.blocks.num_free:
            return None
        step = []
        for row, (sequence, _) in enumerate(sampling):
            if sequence is None or self._ends_after_next(sequence):
                continue
            end = len(sequence.token_ids) + 1
            self._cache.grow(sequence, end)
            step.append(self._scheduled(sequence, (0,), end - 1, samples=True, source=row))
        return Batch(tuple(step))

    def runs(self, batch: Batch) -> bool:
        """Whether any request of a step that is not taken in yet has not ended."""
        return any(self._found(part) is not None for part in batch.sequences)

    def update(self, batch: Batch, token_ids: Mapping[str, tuple[int, ...]]) -> tuple[TokenOutput, ...]:
        """Take in a step that has run; ``token_ids`` has the tokens drawn for each sequence with ``samples``: those of
        its draft that were right, and one more. What was drawn for one that has ended meanwhile is dropped, as is what
        was drawn behind a sequence's end.

        A sequence for which none could be drawn ends with an error. Returns one output for each of these,
        and the end of those whose time is over. Those that end here have freed their blocks.
        """
        now = self._clock()
        self._record(batch, now - self._step_began)
        self._step_began = now  # of the next one, if it runs already
        outputs: list[TokenOutput] = []
        for part in batch.sequences:
            sequence = self._found(part)
            if sequence is None:
                continue
            if not part.samples:
                self._cache.computed(sequence, part.end)
                continue
            drawn = token_ids[part.request_id]
            if not drawn:
                self._end(sequence)
                outputs.append(_output(sequence, (), FinishReason.ERROR, NOT_FINITE))
                continue
            kept, reason = self._append(sequence, drawn)
            self._num_accepted += len(kept) - 1
            self._cache.computed(sequence, part.end - part.num_drafts + len(kept) - 1, len(kept) - 1)
            if part.num_drafts:
                self._cache.shrink(sequence)
            if reason is None and sequence.deadline <= now:
                reason = FinishReason.TIMEOUT
            if reason is not None:
                self._end(sequence)
            outputs.append(_output(sequence, kept, reason))
        for sequence in [sequence for sequence in self._sequences.values() if sequence.deadline <= now]:
            self._end(sequence)
            outputs.append(_output(sequence, (), FinishReason.TIMEOUT))
        return tuple(outputs)

    def stats(self) -> SchedulerStats:
        """How full the scheduler is now."""
        blocks, states, snapshots = self._cache.blocks, self._cache.states, self._cache.snapshots
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_free_blocks=blocks.num_free,
            num_total_blocks=blocks.num_blocks,
            num_preemptions=self._num_preemptions,
            num_cached_blocks=blocks.num_cached,
            num_prefix_queries=self._cache.num_queries,
            num_prefix_hits=self._cache.num_hits,
            max_prefill_tokens=self._chunk.limit,
            waiting_for=self._waiting_for if self._waiting else None,
            step_seconds=self._step_seconds,
            num_used_states=states.num_used,
            num_total_states=states.num_slots,
            num_snapshots=snapshots.num_kept,
            num_total_snapshots=snapshots.num_slots,
            num_drafted=self._num_drafted,
            num_accepted=self._num_accepted,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks and requests are in order. Call it between steps."""
        self._cache.check_integrity(self._sequences.values())
        if {*self._running, *self._waiting} != {*self._sequences.values()}:
            raise AssertionError("running and waiting requests are not those in flight")
        with_state = [sequence for sequence in self._sequences.values() if self._cache.state_of(sequence) is not None]
        if self._cache.states.num_slots and {*with_state} != {*self._running}:
            raise AssertionError("requests that have a state are not those that run")
        for line in (self._running, self._waiting):
            if any(first.order >= second.order for first, second in pairwise(line)):
                raise AssertionError("requests run or wait out of their order")

    # --- inside

    def _admit_next(self, budget: int) -> Sequence | None:
        """Let the first waiting request run, if there is room for it; its blocks are given chunk by chunk."""
        if not self._waiting:
            return None
        sequence = self._waiting[0]
        lack = self._lack_of(sequence, budget)
        if lack is not None:
            self._waiting_for = lack
            return None
        self._cache.begin(sequence)
        if sequence.began is None:
            sequence.began = self._step_began
        insort(self._running, self._waiting.pop(0), key=_order)
        return sequence

    def _lack_of(self, sequence: Sequence, budget: int) -> WaitReason | None:
        if len(self._running) >= self._max_running:
            return WaitReason.MAX_NUM_SEQS
        if not budget:
            return WaitReason.PREFILL_BUDGET
        promised = sum(self._cache.num_missing(running) for running in self._running)
        # A block for each running sequence stays free: a request let in at the brim would be preempted at once.
        reserved = promised + len(self._running)
        if self._cache.num_needed(sequence) + reserved > self._cache.blocks.num_free:
            return WaitReason.KV_BLOCKS
        return None

    def _chunk_of(
        self, sequence: Sequence, budget: int, num_decoding: int, coming: set[bytes]
    ) -> ScheduledSequence | None:
        """The next part of a prompt, as far as budget and free blocks go; None when it has to wait for a step.

        A block stays free for each decoding sequence, unless those come later. coming: keys of the blocks that this
        step fills, or behind which it keeps a state; a prompt that goes on with one of them waits, and shares it from
        the next step on. Those of the chunk are added.
        """
        self._cache.share(sequence)
        if self._cache.waits(sequence, coming):
            return None
        start = sequence.num_computed
        room = self._cache.room(sequence, num_decoding)
        if room <= 0:
            if sequence is self._running[-1] or not self._make_room(sequence, start + 1):
                return None
            room = self._cache.room(sequence, self._cache.blocks.num_free)  # in the block that it got
        end = self._cache.cut(sequence, start + min(budget, room, sequence.num_pending))
        self._cache.grow(sequence, end)
        coming.update(self._cache.plan(sequence, end))
        return self._part(sequence, end)

    def _with_drafts(self, drafter: Drafter, decoding: list[ScheduledSequence]) -> list[ScheduledSequence]:
        """Let the sequences run drafts, too, as far as their limits, the step's and free blocks go."""
        sequences = [self._sequences[part.request_id] for part in decoding]
        limits = {sequence: self._num_left(sequence) - 1 for sequence in sequences}
        most = min(self._config.step_tokens, self._config.max_sampled) - len(decoding)
        drafts = drafter.drafts(limits, most)
        drafted = []
        for sequence, part in zip(sequences, decoding, strict=True):
            draft = self._cut(sequence, drafts.get(sequence, ()))
            if draft and self._cache.grow(sequence, part.end + len(draft)):
                part = self._scheduled(
                    sequence, part.token_ids, part.start, samples=True, draft=draft, num_replayed=part.num_replayed
                )
            drafted.append(part)
        return drafted

    def _cut(self, sequence: Sequence, draft: tuple[int, ...]) -> tuple[int, ...]:
        """A draft up to where it would end the sequence: nothing is gained by a guess of that."""
        sampling = sequence.request.sampling
        stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self._eos_token_ids)}
        return tuple(takewhile(lambda token_id: token_id not in stops, draft))

    def _append(self, sequence: Sequence, drawn: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Give the sequence the tokens up to one that ends it: these, and why."""
        for count, token_id in enumerate(drawn, start=1):
            sequence.token_ids.append(token_id)
            reason = finish_reason(
                token_id,
                num_generated=sequence.num_generated,
                num_tokens=len(sequence.token_ids),
                sampling=sequence.request.sampling,
                eos_token_ids=self._eos_token_ids,
                max_model_len=self._max_model_len,
            )
            if reason is not None:
                return drawn[:count], reason
        return drawn, None

    def _record(self, batch: Batch, seconds: float) -> None:
        """A step took that long."""
        num_prefill = batch.num_tokens - batch.num_decoding - batch.num_drafts
        self._step_seconds += seconds
        self._num_drafted += batch.num_drafts
        self._chunk.record(batch.num_decoding, num_prefill, seconds)
        if self._drafter is not None and not num_prefill:
            self._drafter.record(batch.num_tokens, seconds)

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give the sequence blocks for ``num_tokens``, at the cost of later ones; False if it is the one to go."""
        while not self._cache.grow(sequence, num_tokens):
            last = self._running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        return True

    def _preempt(self, last: Sequence) -> None:
        """Take the last running sequence's blocks and state; it will be prefilled again, with the output it has got so
        far."""
        self._running.pop()
        self._cache.free(last)
        last.was_preempted = True
        insort(self._waiting, last, key=_order)
        self._num_preemptions += 1
        logger.debug("preempted request %s at %d tokens", last.request_id, len(last.token_ids))

    def _part(self, sequence: Sequence, end: int) -> ScheduledSequence:
        start = sequence.num_computed
        token_ids = tuple(sequence.token_ids[start:end])
        samples = end == len(sequence.token_ids)
        return self._scheduled(sequence, token_ids, start, samples=samples, num_replayed=sequence.num_lacking)

    def _scheduled(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        start: int,
        *,
        samples: bool,
        source: int | None = None,
        draft: tuple[int, ...] = (),
        num_replayed: int = 0,
    ) -> ScheduledSequence:
        sequence.num_scheduled = start + len(token_ids) + len(draft)
        return ScheduledSequence(
            sequence.request_id,
            (*token_ids, *draft),
            start,
            self._cache.blocks_of(sequence),
            samples,
            source,
            sequence.serial,
            self._cache.state_of(sequence),
            len(draft),
            num_replayed,
        )

    def _found(self, part: ScheduledSequence) -> Sequence | None:
        """The sequence of a part; None if it has ended since."""
        sequence = self._sequences.get(part.request_id)
        return sequence if sequence is not None and sequence.serial == part.serial else None

    def _num_left(self, sequence: Sequence) -> int:
        """Tokens that it may still get."""
        return min(
            sequence.request.sampling.max_tokens - sequence.num_generated,
            self._max_model_len - len(sequence.token_ids),
        )

    def _ends_after_next(self, sequence: Sequence) -> bool:
        """Whether its next token is its last, whatever that is."""
        return self._num_left(sequence) <= 1

    def _end(self, sequence: Sequence) -> None:
        (self._running if sequence in self._running else self._waiting).remove(sequence)
        self._cache.free(sequence)
        if self._drafter is not None:
            self._drafter.forget(sequence)
        del self._sequences[sequence.request_id]


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order


def _output(
    sequence: Sequence, token_ids: tuple[int, ...], reason: FinishReason | None, error: str | None = None
) -> TokenOutput:
    return TokenOutput(
        sequence.request_id, token_ids, reason, error, num_cached_tokens=sequence.num_cached, began=sequence.began
    )
