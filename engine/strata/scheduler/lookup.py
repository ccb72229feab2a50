"""Drafts by prompt lookup: what followed the newest tokens where they stood before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MAX_MATCH = 4  # tokens; of two occurrences that agree as far, the later one counts
MAX_CANDIDATES = 16  # occurrences that are compared


class Lookup:
    """Where each pair of tokens of one sequence stood before, token by token.

    Saxena 2023, prompt lookup decoding. A token costs one entry of a dictionary and four bytes, a draft the comparison
    of a few earlier places.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}  # a pair, and where its second token stood last
        self._before = array("i")  # for each place: where the pair that ends there ended before; 0: nowhere

    def draft(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """What may follow ``token_ids``, the sequence's tokens so far, which only grow; empty if nothing is known."""
        self._extend(token_ids)
        place = self._find(token_ids)
        if place is None:
            return ()
        # Where the draft reaches the end, it goes on with itself: the text repeats.
        period = len(token_ids) - 1 - place
        return tuple(token_ids[place + 1 + i % period] for i in range(max_tokens))

    def _extend(self, token_ids: Sequence[int]) -> None:
        latest, before = self._latest, self._before
        for place in range(len(before), len(token_ids)):
            if not place:
                before.append(0)
                continue
            pair = token_ids[place - 1], token_ids[place]
            before.append(latest.get(pair, 0))
            latest[pair] = place

    def _find(self, token_ids: Sequence[int]) -> int | None:
        """Where the tokens that agree furthest with the newest ones end, at least two of them."""
        last = len(token_ids) - 1
        place = self._before[last] if last > 0 else 0
        found, longest = None, 1
        for _ in range(MAX_CANDIDATES):
            if not place or longest == MAX_MATCH:
                break
            length = 2
            while length < min(MAX_MATCH, place + 1) and token_ids[place - length] == token_ids[last - length]:
                length += 1
            if length > longest:
                found, longest = place, length
            place = self._before[place]
        return found
