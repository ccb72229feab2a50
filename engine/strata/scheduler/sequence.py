"""One request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.request import GenerationRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens so far and how many of them the KV cache holds. Changed by the scheduler only."""

    request: GenerationRequest
    token_ids: list[int] = field(init=False)  # prompt and output
    num_computed: int = 0  # leading tokens whose keys and values are in the cache

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_generated(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens still to run: 1 while decoding, more while the prompt (after a preemption: all of it) is prefilled."""
        return len(self.token_ids) - self.num_computed
