"""A model and a runner for the scheduler's tests: each token is a function of all tokens before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from strata.request import FinishReason, GenerationRequest
from strata.scheduler.batch import Batch
from strata.scheduler.stopping import finish_reason

VOCAB_SIZE = 50
EOS = 0


def next_token(history: Sequence[int]) -> int:
    """The greedy token of the pretended model."""
    digest = hashlib.blake2b(repr(list(history)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def run_alone(request: GenerationRequest, max_model_len: int) -> tuple[list[int], FinishReason]:
    """The output that the request has when nothing else runs."""
    history = list(request.prompt_token_ids)
    generated: list[int] = []
    while True:
        generated.append(next_token(history))
        history.append(generated[-1])
        reason = finish_reason(
            generated[-1],
            num_generated=len(generated),
            num_tokens=len(history),
            sampling=request.sampling,
            eos_token_ids=(EOS,),
            max_model_len=max_model_len,
        )
        if reason is not None:
            return generated, reason


class PagedRunner:
    """Keeps tokens in pretended KV blocks as a real runner keeps keys and values, and reads the history from there.

    A sequence that is given a wrong block, position or token therefore gets a wrong next token.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]

    def run(self, batch: Batch) -> dict[str, int]:
        """The token drawn for each sequence that samples."""
        for part in batch.sequences:
            for position, token_id in enumerate(part.token_ids, start=part.start):
                block, offset = divmod(position, self.block_size)
                self.blocks[part.block_ids[block]][offset] = token_id
        drawn: dict[str, int] = {}
        for part in batch.sequences:
            if part.samples:
                cached = [token_id for block in part.block_ids for token_id in self.blocks[block]]
                history = cached[: part.start + len(part.token_ids)]
                drawn[part.request_id] = next_token([-1 if token_id is None else token_id for token_id in history])
        return drawn
