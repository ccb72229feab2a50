"""One request on its way through the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from strata.request import GenerationRequest
from strata.scheduler.prefix import FIRST_KEY, block_key


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens so far and how many of them the KV cache holds. Changed by the scheduler only.

    order: who goes first, the smaller one; unique. deadline: seconds of the scheduler's clock.
    """

    request: GenerationRequest
    order: tuple[float, int]
    deadline: float
    block_size: int
    token_ids: list[int] = field(init=False)  # prompt and output
    num_computed: int = 0  # leading tokens whose keys and values are in the cache
    num_scheduled: int = 0  # the same, with those of steps that have not been taken in
    num_cached: int = 0  # tokens of the prompt that the prefix cache had at the first run
    began: float | None = None  # when it first ran, in seconds of the scheduler's clock
    was_preempted: bool = False
    # Of a model with states: up to where others have computed what it begins with, though nobody kept the state there;
    # the last position before which one is kept; computed tokens that its state lacks, right drafts of the last step.
    branch: int = 0
    kept: int = 0
    num_lacking: int = 0
    _keys: list[bytes] = field(default_factory=list)  # of its full blocks, as far as they were asked for

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def serial(self) -> int:
        """Tells it from all other sequences."""
        return self.order[1]

    @property
    def num_generated(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens still to run: 1 while decoding, more while the prompt (after a preemption: all of it) is prefilled."""
        return len(self.token_ids) - self.num_computed

    def key(self, index: int) -> bytes:
        """The prefix cache's key of block ``index``, whose tokens must all be there. Each is hashed once."""
        keys, size = self._keys, self.block_size
        while len(keys) <= index:
            start = len(keys) * size
            keys.append(block_key(keys[-1] if keys else FIRST_KEY, self.token_ids[start : start + size]))
        return keys[index]

    def shareable_keys(self) -> Iterator[bytes]:
        """Keys of the full blocks that it has not computed. The last token is left out: its logits are needed."""
        first, end = self.num_computed // self.block_size, (len(self.token_ids) - 1) // self.block_size
        return (self.key(index) for index in range(first, end))
