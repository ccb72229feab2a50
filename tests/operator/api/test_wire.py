"""Dataclasses to tables and back; and what is refused on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from strata_operator.api import wire
from strata_operator.api.errors import InvalidSpecError


@dataclass(frozen=True, slots=True)
class Inner:
    max_mhz: int = field(metadata={"json": "maxMHz"})
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    some_bytes: int = 0
    is_on: bool = False
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    words: tuple[str, ...] = ()


FULL = Outer(7, True, Inner(5, "n"), (Inner(1), Inner(2)), ("a",))
TABLE = {
    "someBytes": 7,
    "isOn": True,
    "inner": {"maxMHz": 5, "note": "n"},
    "inners": [{"maxMHz": 1}, {"maxMHz": 2}],
    "words": ["a"],
}


def test_there_and_back() -> None:
    assert wire.dump(FULL) == TABLE
    assert wire.load(Outer, TABLE, "t", closed=True) == FULL


def test_what_is_empty_is_left_out_and_zero_is_not_empty() -> None:
    assert wire.dump(Outer()) == {"someBytes": 0, "isOn": False}
    assert wire.load(Outer, {}, "t", closed=True) == Outer()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"someBytes": "7"}, r"t\.someBytes is '7'; it must be of type int"),
        ({"someBytes": True}, "must be of type int"),  # True is an int to Python
        ({"isOn": 1}, "must be of type bool"),
        ({"inner": {}}, r"t\.inner\.maxMHz is missing"),
        ({"inner": []}, r"t\.inner is \[\]; it must be a table"),
        ({"inners": {}}, r"t\.inners is {}; it must be a list"),
        ({"inners": [{"maxMHz": 1}, {"maxMHz": None}]}, r"t\.inners\[1\]\.maxMHz is missing"),
        ({"inners": [{"maxMHz": 1, "old": 2}]}, r"t\.inners\[0\]\.old is not known here; known are maxMHz, note"),
    ],
)
def test_what_cannot_be_read_is_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        wire.load(Outer, table, "t", closed=True)


def test_an_open_table_may_hold_what_is_not_known() -> None:
    assert wire.load(Outer, {"new": 1, "isOn": True}, "t", closed=False) == Outer(is_on=True)


def test_by_parts_one_unreadable_field_leaves_the_others() -> None:
    assert wire.load_parts(Outer, {**TABLE, "inner": 3, "new": 1}, "t") == Outer(
        7, True, None, (Inner(1), Inner(2)), ("a",)
    )
