from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_operator.api.names import child_name

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", fullmatch=True)
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@settings(deadline=None)
@given(NAMES.filter(lambda name: len(name) <= 253))
def test_every_name_of_a_model_becomes_one_of_a_service(name: str) -> None:
    made = child_name(name)
    assert SERVICE.fullmatch(made)
    assert len(made) <= 52


@settings(deadline=None)
@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    assert child_name(names[0]) != child_name(names[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [("a.b", "a-b"), ("a..b", "a.b"), ("x" * 60, "x" * 61), ("1a", "m-1a")],
    ids=["dot and dash", "two dots", "longer than the limit", "digit first"],
)
def test_names_that_shorten_to_the_same_stay_apart(one: str, other: str) -> None:
    assert child_name(one) != child_name(other)


def test_a_plain_name_stays() -> None:
    assert child_name("qwen3-30b") == "qwen3-30b"
