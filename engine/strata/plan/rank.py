"""Which of a layer's experts a card has where several cards share them. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """Number ``index`` of ``count`` cards. Expert e of every layer is rank ``e % count``'s, where it is number
    ``e // count``: so ranks' numbers of experts differ by one at most, and experts that lie together are spread."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.index < self.count, f"rank {self.index} of {self.count}"

    @property
    def is_alone(self) -> bool:
        return self.count == 1

    def num_own(self, num_experts: int) -> int:
        """Of a layer's experts, this rank's."""
        return len(range(self.index, num_experts, self.count))

    def number(self, expert: int) -> int | None:
        """Of an expert among the rank's own; None for another rank's."""
        return expert // self.count if expert % self.count == self.index else None


ALONE = Rank()
