from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from strata_operator.api.conditions import Condition, find, having, merge, reason, shorten, timestamp

THEN = datetime(2026, 1, 1, tzinfo=UTC)
LATER = THEN + timedelta(hours=1)


def test_time_moves_only_on_a_flip() -> None:
    first = merge([Condition("Ready", False, "A", "a")], [], generation=1, now=THEN)
    same = merge([Condition("Ready", False, "B", "b")], first, generation=2, now=LATER)
    assert same[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert (same[0]["reason"], same[0]["message"], same[0]["observedGeneration"]) == ("B", "b", 2)
    flipped = merge([Condition("Ready", True, "C", "c")], same, generation=2, now=LATER)
    assert flipped[0]["lastTransitionTime"] == timestamp(LATER)


def test_the_order_does_not_depend_on_who_asks() -> None:
    one, two = Condition("A", True, "R", ""), Condition("B", True, "R", "")
    assert merge([two, one], [], generation=1, now=THEN) == merge([one, two], [], generation=1, now=THEN)


def test_conditions_that_are_no_longer_ours_go() -> None:
    old = merge([Condition("Former", True, "R", "")], [], generation=1, now=THEN)
    assert [c["type"] for c in merge([Condition("Ready", True, "R", "")], old, generation=1, now=THEN)] == ["Ready"]


def test_times_are_utc_in_whole_seconds() -> None:
    local = datetime(2026, 1, 1, 2, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp(local) == "2026-01-01T00:00:00Z"


def test_find() -> None:
    status = {"conditions": merge([Condition("Ready", True, "R", "")], [], generation=1, now=THEN)}
    assert find(status, "Ready")["reason"] == "R"
    assert find(status, "Degraded") == {}
    assert find({}, "Ready") == {}


def test_long_texts_keep_their_end() -> None:
    text = shorten("x" * 5000 + "the reason")
    assert len(text) == 1000
    assert text.endswith("the reason")


def test_having() -> None:
    conditions = [{"type": "A", "status": "True"}, {"type": "A", "status": "False"}, {"type": "B", "status": "True"}]
    assert having(conditions, "A", "True") == conditions[:1]
    assert having(None, "A", "True") == []


def test_a_reason_that_is_one_already_stays() -> None:
    assert reason("FailedMount", otherwise="PodFailed") == "FailedMount"
