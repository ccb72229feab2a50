"""A model and a runner for the scheduler's tests: each token is a function of all tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

from strata.request import FinishReason, GenerationRequest
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.scheduler.stopping import finish_reason

VOCAB_SIZE = 50
EOS = 0
WRONG_STATE = -1  # drawn for a sequence whose state is not of its tokens


def key_value(before: Sequence[int], token_id: int) -> int:
    """What the pretended cache holds for a token. As in a real model it depends on all tokens before."""
    return hash((*before, token_id))


def next_token(cached: Sequence[int]) -> int:
    """The greedy token of the pretended model, from the cache of all tokens."""
    return hash((*cached, VOCAB_SIZE)) % VOCAB_SIZE


def run_alone(request: GenerationRequest, max_model_len: int) -> tuple[list[int], FinishReason]:
    """The output that the request has when nothing else runs."""
    cached: list[int] = []
    for token_id in request.prompt_token_ids:
        cached.append(key_value(cached, token_id))
    generated: list[int] = []
    while True:
        generated.append(next_token(cached))
        cached.append(key_value(cached, generated[-1]))
        reason = finish_reason(
            generated[-1],
            num_generated=len(generated),
            num_tokens=len(cached),
            sampling=request.sampling,
            eos_token_ids=(EOS,),
            max_model_len=max_model_len,
        )
        if reason is not None:
            return generated, reason


class PagedRunner:
    """Keeps pretended keys and values in blocks, as a real runner does, and reads all that came before from there.

    A sequence that is given a wrong block, position or token therefore gets a wrong next token. With ``num_states`` it
    also keeps a pretended state of each sequence, which has to be of the same tokens, and what drafts were in its last
    step, of which right ones are taken in later.
    """

    def __init__(self, num_blocks: int, block_size: int, num_states: int = 0) -> None:
        self.block_size = block_size
        self.blocks = [[-1] * block_size for _ in range(num_blocks)]
        self.states: list[list[int]] = [[-1]] * num_states
        self.drafts: list[tuple[int, ...]] = [()] * num_states

    def run(self, batch: Batch) -> dict[str, tuple[int, ...]]:
        """The tokens drawn for each sequence that samples: those of its draft that are right, and one more."""
        self._copy(batch.restores)
        drawn = self._run(batch)
        self._copy(batch.saves)
        return drawn

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.states[target] = self.states[source]

    def _run(self, batch: Batch) -> dict[str, tuple[int, ...]]:
        drawn: dict[str, tuple[int, ...]] = {}
        for part in batch.sequences:
            cached = [value for block in part.block_ids for value in self.blocks[block]][: part.start]
            state = self._state_of(part)
            for position, token_id in enumerate(part.token_ids, start=part.start):
                cached.append(key_value(cached, token_id))
                state.append(key_value(state, token_id))
                block, offset = divmod(position, self.block_size)
                self.blocks[part.block_ids[block]][offset] = cached[-1]
            if part.state_slot is not None:
                self.states[part.state_slot] = state[: len(state) - part.num_drafts]
                self.drafts[part.state_slot] = part.drafts
            if part.samples:
                drawn[part.request_id] = _drawn(cached, part.drafts) if state == cached else (WRONG_STATE,)
        return drawn

    def _state_of(self, part: ScheduledSequence) -> list[int]:
        """What its slot holds, with the drafts that turned out right; zeros for one that begins, whatever lies there. A
        model without states sees what it cached."""
        if not self.states:
            return [value for block in part.block_ids for value in self.blocks[block]][: part.start]
        assert part.state_slot is not None
        state = [*self.states[part.state_slot]] if part.start > part.num_replayed else []
        for token_id in self.drafts[part.state_slot][: part.num_replayed]:
            state.append(key_value(state, token_id))
        return state


def _drawn(cached: Sequence[int], drafts: Sequence[int]) -> tuple[int, ...]:
    """``cached``: with the draft's tokens at its end."""
    first = len(cached) - len(drafts)
    drawn = [next_token(cached[:first])]
    for place, token_id in enumerate(drafts, start=1):
        if token_id != drawn[-1]:
            break
        drawn.append(next_token(cached[: first + place]))
    return tuple(drawn)
