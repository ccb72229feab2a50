from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.figures import Buckets, Traffic
from strata_operator.measured import Measured, quantile

INF = float("inf")
BUCKETS: Buckets = ((0.1, 10), (0.2, 20), (INF, 20))
TRAFFIC = Traffic(1234, 2.0, BUCKETS, experts=800, hits=600)
TOLD = {
    "revision": "r",
    "tokensPerSecond": 620,
    "ttftP50Milliseconds": 100,
    "ttftP95Milliseconds": 190,
    "expertHitPercent": 75,
}


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ((), 0.5, None),
        (((0.1, 0), (INF, 0)), 0.5, None),
        (((0.1, 4), (INF, 4)), 0.5, 0.05),
        (((0.1, 4), (0.3, 8), (INF, 8)), 0.75, 0.2),
        (((0.1, 0), (0.3, 8), (INF, 8)), 0.5, 0.2),
        (((0.1, 1), (60, 1), (INF, 8)), 0.95, 60),
    ],
    ids=["nothing", "no request", "first bucket", "second bucket", "an empty bucket before", "beyond all bounds"],
)
def test_a_quantile_is_prometheus_s(buckets: Buckets, share: float, expected: float | None) -> None:
    assert quantile(buckets, share) == (None if expected is None else pytest.approx(expected))


def test_what_was_measured_is_told_to_two_digits_and_then_stays() -> None:
    first = Measured("r").after([TRAFFIC])
    assert first.dump() == TOLD
    assert Measured.of({"measured": TOLD}, "r") == first
    assert first.after([TRAFFIC]) == first


@pytest.mark.parametrize(
    ("seconds", "expected"), [(2.2, 620), (1.85, 620), (1.5, 820), (2.3, 540)], ids=["-9 %", "+8 %", "+33 %", "-13 %"]
)
def test_only_a_change_by_more_than_a_tenth_is_news(seconds: float, expected: int) -> None:
    held = Measured.of({"measured": TOLD}, "r")
    assert held.after([Traffic(1234, seconds, BUCKETS)]).tokens_per_second == expected


def test_replicas_are_one_speed_and_all_their_requests() -> None:
    slow = Traffic(100, 2.0, ((0.1, 0), (0.2, 60), (INF, 60)))
    both = Measured("r").after([TRAFFIC, slow])
    assert both.tokens_per_second == 330  # (1234 + 100) / 4 s
    assert both.ttft_p50_milliseconds == 140


@pytest.mark.parametrize("traffic", [[], [Traffic(0, 0, ())], [Traffic(0, 3, ((INF, 0),))]])
def test_without_traffic_what_is_held_stays(traffic: list[Traffic]) -> None:
    held = Measured.of({"measured": TOLD}, "r")
    assert held.after(traffic) == held
    assert Measured("r").after(traffic).dump() == {}


def test_another_revision_starts_from_nothing() -> None:
    assert Measured.of({"measured": TOLD}, "other") == Measured("other")


@pytest.mark.parametrize("edited", [None, "x", {"revision": 3}, {"revision": "r", "tokensPerSecond": "many"}])
def test_what_was_edited_by_hand_counts_as_absent(edited: Any) -> None:
    assert Measured.of({"measured": edited}, "r") == Measured("r")


def test_a_figure_that_no_engine_reaches_is_not_written() -> None:
    assert Measured("r").after([Traffic(1e300, 1e-9, ())]).tokens_per_second is None
    assert Measured("r").after([Traffic(1, 1000, ())]).tokens_per_second == 1  # and no 0, which would read as broken
