"""Continuous batching: which tokens of which requests run in the next step.

A request waits, runs, and ends; a running one may be preempted, which puts it back at the head of the queue. Requests
are served in order of arrival: every running request is older than every waiting one, blocks are taken from the
youngest for the oldest, and nothing is let in past a request that has to wait. The oldest request therefore always
makes progress, and since it ends, so does each of the others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping

from strata.config import SchedulerConfig
from strata.errors import OptionError, RequestError
from strata.request import FinishReason, GenerationRequest, TokenOutput
from strata.scheduler.admission import check_capacity, check_id, check_length
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.scheduler.blocks import BlockManager
from strata.scheduler.sequence import Sequence
from strata.scheduler.stats import SchedulerStats
from strata.scheduler.stopping import finish_reason

logger = logging.getLogger(__name__)

NO_TOKEN = (
    "no token can be drawn for this request: the model's output is not finite (NaN or infinite). A repetition_penalty "
    "far from 1 can do that; where requests without one fail too, the weights are unsound"
)


class Scheduler:
    """Plans steps: ``schedule()``, run the batch, draw a token for each sequence that samples, ``update()``, again.

    num_blocks, block_size: the KV pool. max_model_len: tokens of prompt and output together that end a request.
    Raises OptionError for limits under which nothing could run.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
    ) -> None:
        if config.max_num_seqs < 1:
            raise OptionError(f"max_num_seqs is {config.max_num_seqs}; at least 1 is needed")
        if config.max_num_batched_tokens < config.max_num_seqs:
            # Else decoding alone could fill every step, and a prompt would never be prefilled.
            raise OptionError(
                f"max_num_batched_tokens is {config.max_num_batched_tokens} and max_num_seqs {config.max_num_seqs}: "
                "a step must have room for one token of every sequence; raise the first or lower the second"
            )
        if config.max_waiting < 0:
            raise OptionError(f"max_waiting is {config.max_waiting}; 0 or more is allowed")
        self._config = config
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._blocks = BlockManager(num_blocks, block_size)
        self._sequences: dict[str, Sequence] = {}  # every request that has not ended
        self._waiting: deque[Sequence] = deque()  # oldest first
        self._running: list[Sequence] = []  # oldest first
        self._num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._sequences)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises RequestError if it could not run even alone, OverloadedError if ``max_waiting`` requests wait already.
        """
        self._check_fits(request)
        check_capacity(len(self._sequences), self._config)
        sequence = Sequence(request)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks now; False if it has ended or was never there. Not during a step."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._forget(sequence)
        return True

    def schedule(self) -> Batch | None:
        """The next step, None when no request is left: one token of each decoding sequence, then prefill chunks."""
        # Those preempted on the way leave ``_running`` from its end, which ends the iteration early.
        step = [
            self._part(sequence, 1)
            for sequence in self._running
            if sequence.num_pending == 1 and self._make_room(sequence)
        ]
        budget = self._config.max_num_batched_tokens - len(step)
        for sequence in self._running:
            if budget and sequence.num_pending > 1:
                step.append(self._part(sequence, budget))
                budget -= len(step[-1].token_ids)
        while budget and self._admit_next():
            step.append(self._part(self._running[-1], budget))
            budget -= len(step[-1].token_ids)
        return Batch(tuple(step)) if step else None

    def update(self, batch: Batch, token_ids: Mapping[str, int | None]) -> tuple[TokenOutput, ...]:
        """Take in a step that has run; ``token_ids`` has the token drawn for each sequence with ``samples``.

        None where none could be drawn, which ends that sequence with an error. Returns one output for each of these.
        Those that end here have freed their blocks.
        """
        outputs: list[TokenOutput] = []
        for part in batch.sequences:
            sequence = self._sequences[part.request_id]
            sequence.num_computed = part.end
            if not part.samples:
                continue
            token_id = token_ids[part.request_id]
            if token_id is None:
                self._running.remove(sequence)
                self._forget(sequence)
                outputs.append(TokenOutput(part.request_id, (), FinishReason.ERROR, NO_TOKEN))
                continue
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
                self._running.remove(sequence)
                self._forget(sequence)
            outputs.append(TokenOutput(part.request_id, (token_id,), reason))
        return tuple(outputs)

    def stats(self) -> SchedulerStats:
        """How full the scheduler is now."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_free_blocks=self._blocks.num_free,
            num_total_blocks=self._blocks.num_blocks,
            num_preemptions=self._num_preemptions,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks and requests are in order. Call it between steps."""
        self._blocks.check_integrity()
        if [*self._running, *self._waiting] != list(self._sequences.values()):
            raise AssertionError("running and waiting requests are not those in flight, in order of arrival")
        num_owned = sum(len(self._blocks.owned_by(sequence.request_id)) for sequence in self._running)
        if num_owned + self._blocks.num_free != self._blocks.num_blocks:
            raise AssertionError("blocks are owned by requests that do not run")

    # --- inside

    def _check_fits(self, request: GenerationRequest) -> None:
        num_prompt = len(request.prompt_token_ids)
        check_length(num_prompt, max_model_len=self._max_model_len)
        if request.sampling.max_tokens < 1:
            raise RequestError(f"max_tokens is {request.sampling.max_tokens}; at least 1 is needed", param="max_tokens")
        check_id(request.request_id, self._sequences)
        # The last token is never run, so it needs no place in the cache.
        num_cached = min(num_prompt + request.sampling.max_tokens, self._max_model_len) - 1
        if self._blocks.blocks_for(num_cached) > self._blocks.num_blocks:
            raise RequestError(
                f"prompt and output may come to {num_cached + 1} tokens, but the KV cache holds "
                f"{self._blocks.num_blocks * self._blocks.block_size}; lower max_tokens or shorten the prompt",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def _admit_next(self) -> bool:
        """Let the oldest waiting request run, if there is room for it."""
        if not self._waiting or len(self._running) >= self._config.max_num_seqs:
            return False
        sequence = self._waiting[0]
        num_tokens = len(sequence.token_ids)
        # A block for each running sequence stays free: a request let in at the brim would be preempted at once.
        if self._blocks.blocks_for(num_tokens) + len(self._running) > self._blocks.num_free:
            return False
        self._blocks.grow(sequence.request_id, num_tokens)
        self._running.append(self._waiting.popleft())
        return True

    def _make_room(self, sequence: Sequence) -> bool:
        """Give the sequence a place for its newest token, at the cost of younger ones; False if it is the one to go."""
        while not self._blocks.grow(sequence.request_id, len(sequence.token_ids)):
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, youngest: Sequence) -> None:
        """Take the last running sequence's blocks; it will be prefilled again, with the output it has got so far."""
        self._running.pop()
        self._blocks.free(youngest.request_id)
        youngest.num_computed = 0
        self._waiting.appendleft(youngest)
        self._num_preemptions += 1
        logger.debug("preempted request %s at %d tokens", youngest.request_id, len(youngest.token_ids))

    def _part(self, sequence: Sequence, limit: int) -> ScheduledSequence:
        start = sequence.num_computed
        token_ids = tuple(sequence.token_ids[start : start + limit])
        end = start + len(token_ids)
        block_ids = self._blocks.owned_by(sequence.request_id)[: self._blocks.blocks_for(end)]
        return ScheduledSequence(sequence.request_id, token_ids, start, block_ids, end == len(sequence.token_ids))

    def _forget(self, sequence: Sequence) -> None:
        self._blocks.free(sequence.request_id)
        del self._sequences[sequence.request_id]
