"""A drafter that knows what the pretended model says, and is wrong from a given token on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from strata.scheduler.sequence import Sequence
from tests.scheduler.fake_model import key_value, next_token


@dataclass
class Oracle:
    """Drafts of ``num_right`` right tokens and ``num_wrong`` wrong ones, for every sequence in every step."""

    num_right: int
    num_wrong: int = 0
    records: list[int] = field(default_factory=list)  # tokens of steps that decoded

    def drafts(self, limits: Mapping[Sequence, int], max_drafted: int) -> dict[Sequence, tuple[int, ...]]:
        drafts = {}
        for sequence, limit in limits.items():
            draft = self._draft(sequence)[: max(0, min(limit, max_drafted))]
            max_drafted -= len(draft)
            drafts[sequence] = draft
        return drafts

    def wants(self, sequences: Collection[Sequence], max_drafted: int) -> bool:
        return self.num_right + self.num_wrong > 0 and max_drafted > 0 and len(sequences) % 2 == 1

    def record(self, num_tokens: int, seconds: float) -> None:
        assert seconds > 0
        self.records.append(num_tokens)

    def forget(self, sequence: Sequence) -> None:
        pass

    def _draft(self, sequence: Sequence) -> tuple[int, ...]:
        cached: list[int] = []
        for token_id in sequence.token_ids:
            cached.append(key_value(cached, token_id))
        draft = []
        for place in range(self.num_right + self.num_wrong):
            right = next_token(cached)
            draft.append(right if place < self.num_right else right + 1)
            cached.append(key_value(cached, draft[-1]))
        return tuple(draft)
