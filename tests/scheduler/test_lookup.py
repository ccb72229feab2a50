"""What stood before, and how well it foretells what comes."""

from __future__ import annotations

import random

import pytest

from strata.scheduler.lookup import MAX_CANDIDATES, MAX_MATCH, Lookup


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        pytest.param([], (), id="nothing"),
        pytest.param([1], (), id="one token"),
        pytest.param([1, 2, 3, 2], (), id="one token alike is no match"),
        pytest.param([1, 2, 3, 4, 5, 6, 1, 2], (3, 4, 5, 6), id="a pair alike"),
        pytest.param([1, 2, 3, 9, 1, 2, 4, 8, 1, 2], (4, 8, 1, 2), id="of two pairs the later one"),
        pytest.param([7, 1, 2, 3, 9, 8, 1, 2, 4, 9, 7, 1, 2], (3, 9, 8, 1), id="but the longer match before it"),
        pytest.param([5, 6, 5, 6], (5, 6, 5, 6), id="what repeats goes on"),
        pytest.param([0, 4, 4, 4], (4, 4, 4, 4), id="one token over and over"),
        pytest.param([0, 0, 3, 0, 0], (3, 0, 0, 3), id="at the very beginning"),
    ],
)
def test_draft(text: list[int], draft: tuple[int, ...]) -> None:
    assert Lookup().draft(text, 4) == draft


def test_tokens_may_come_one_by_one_or_together() -> None:
    """The longest match of the latest places, as a search of the whole text finds it."""
    text = [random.Random(3).randrange(3) for _ in range(200)]
    step = Lookup()
    for end in range(len(text) + 1):
        seen = text[:end]
        assert step.draft(seen, 3) == Lookup().draft(seen, 3) == searched(seen, 3)


def searched(text: list[int], num_tokens: int) -> tuple[int, ...]:
    last = len(text) - 1
    places = [place for place in range(1, last) if text[place - 1 : place + 1] == text[last - 1 :]]
    if not places:
        return ()

    def length(place: int) -> int:
        return max(
            n for n in range(2, MAX_MATCH + 1) if text[max(0, place - n + 1) : place + 1] == text[last - n + 1 :]
        )

    place = max(places[-MAX_CANDIDATES:], key=lambda place: (length(place), place))
    followed = text[place + 1 :]
    return tuple(followed[i % len(followed)] for i in range(num_tokens))
