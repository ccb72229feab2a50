"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strata.server.stop import StopStrings


def run(strings: list[str], pieces: list[str]) -> tuple[str, bool]:
    """What gets out of a whole answer, and whether a stop string ended it."""
    stops, shown = StopStrings(strings), ""
    for piece in pieces:
        text, met = stops.feed(piece)
        shown += text
        if met:
            return shown, True
    return shown + stops.feed("", is_last=True)[0], False


def test_text_without_a_beginning_of_a_stop_string_passes_at_once() -> None:
    assert StopStrings(["END"]).feed("hello") == ("hello", False)


def test_a_beginning_is_held_back_until_it_is_decided() -> None:
    stops = StopStrings(["END"])
    assert stops.feed("hello E") == ("hello ", False)
    assert stops.feed("N") == ("", False)
    assert stops.feed("ough") == ("ENough", False)


def test_a_stop_string_in_pieces_never_shows() -> None:
    assert run(["END"], ["hello E", "N", "D and more"]) == ("hello ", True)


def test_the_first_of_several_ends_the_text() -> None:
    assert run(["world", "lo"], ["hello world"]) == ("hel", True)


def test_what_was_held_back_comes_out_at_the_end() -> None:
    assert run(["END"], ["hello EN"]) == ("hello EN", False)


def test_the_last_piece_holds_nothing_back() -> None:
    stops = StopStrings(["END"])
    assert stops.feed("hello E") == ("hello ", False)
    assert stops.feed("N", is_last=True) == ("EN", False)


def test_a_beginning_inside_a_beginning_is_kept() -> None:
    assert run(["aab"], ["aa", "a", "b"]) == ("a", True)


@given(
    text=st.text("ab", max_size=20),
    strings=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 20)),
)
def test_pieces_show_no_more_than_the_text_before_the_first_stop_string(
    text: str, strings: list[str], cuts: list[int]
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown, met = run(strings, [text[a:b] for a, b in pairwise(edges)])
    assert met == any(string in text for string in strings)
    assert text.startswith(shown)
    assert not any(string in shown for string in strings)
    if not met:
        assert shown == text
