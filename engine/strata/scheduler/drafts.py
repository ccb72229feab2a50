"""Who drafts for whom, and how far."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from strata.config.engine import MAX_DRAFT
from strata.scheduler.depth import FIRST_ACCEPTANCE, DepthController, updated
from strata.scheduler.lookup import Lookup
from strata.scheduler.sequence import Sequence


class Drafter(Protocol):
    """Guesses what follows. Told of sequences that decode, whose tokens only grow."""

    def drafts(self, limits: Mapping[Sequence, int], max_drafted: int) -> dict[Sequence, tuple[int, ...]]:
        """The drafts that are worth being run beside the sequences' own tokens, each of ``limits`` tokens at most and
        ``max_drafted`` together. ``limits`` has all that decode in the step."""

    def wants(self, sequences: Collection[Sequence], max_drafted: int) -> bool:
        """Whether it may have such drafts once each of the sequences has one token more."""

    def record(self, num_tokens: int, seconds: float) -> None:
        """A step of sequences that decode took that long; ``num_tokens`` with those of drafts."""

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""


class LookupDrafter:
    """A ``Drafter`` that looks up what followed the newest tokens before."""

    def __init__(self) -> None:
        self._depth = DepthController()
        self._guesses: dict[int, _Guesses] = {}  # by the sequences' serials

    def drafts(self, limits: Mapping[Sequence, int], max_drafted: int) -> dict[Sequence, tuple[int, ...]]:
        guesses = {sequence: self._guess(sequence) for sequence in limits}
        depths = self._depths(guesses, max_drafted)
        drafts = {sequence: guesses[sequence][: min(depth, limits[sequence])] for sequence, depth in depths.items()}
        return {sequence: draft for sequence, draft in drafts.items() if draft}

    def wants(self, sequences: Collection[Sequence], max_drafted: int) -> bool:
        return bool(self._depths({sequence: self._guess(sequence) for sequence in sequences}, max_drafted))

    def record(self, num_tokens: int, seconds: float) -> None:
        self._depth.record(num_tokens, seconds)

    def forget(self, sequence: Sequence) -> None:
        self._guesses.pop(sequence.serial, None)

    def _guess(self, sequence: Sequence) -> tuple[int, ...]:
        return self._guesses.setdefault(sequence.serial, _Guesses()).next(sequence.token_ids)

    def _depths(self, guesses: Mapping[Sequence, tuple[int, ...]], max_drafted: int) -> dict[Sequence, int]:
        acceptance = {
            sequence: self._guesses[sequence.serial].acceptance for sequence, guess in guesses.items() if guess
        }
        return self._depth.depths(acceptance, len(guesses), max_drafted) if acceptance else {}


class _Guesses:
    """Of one sequence: the newest, and how many were right, whether they were run or not."""

    def __init__(self) -> None:
        self.acceptance = FIRST_ACCEPTANCE
        self._lookup = Lookup()
        self._place = 0  # where the newest guess begins
        self._guess: tuple[int, ...] = ()

    def next(self, token_ids: list[int]) -> tuple[int, ...]:
        """What may follow the tokens."""
        if len(token_ids) > self._place:
            for token_id, guess in zip(token_ids[self._place :], self._guess, strict=False):
                self.acceptance = updated(self.acceptance, token_id == guess)
                if token_id != guess:
                    break
            self._place, self._guess = len(token_ids), self._lookup.draft(token_ids, MAX_DRAFT)
        return self._guess
