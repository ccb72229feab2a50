from __future__ import annotations

import threading

import pytest

from strata_operator.workqueue import WorkQueue

SOON = 30.0  # seconds that a thread gets before a test gives up on it


def test_a_key_is_held_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert len(queue) == 2
    assert (queue.get(), queue.get()) == ("a", "b")


def test_a_key_added_while_it_is_worked_on_comes_once_more() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0  # not to a second worker meanwhile
    queue.done("a")
    assert len(queue) == 1
    assert queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_what_is_due_comes_and_what_is_not_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("strata_operator.workqueue.time.monotonic", lambda: now[0])
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("late", 60)
    queue.add_after("early", 10)
    now[0] += 11
    assert queue.get() == "early"
    queue.add("now")
    assert queue.get() == "now"
    now[0] += 50
    assert queue.get() == "late"


def test_the_earlier_date_wins_and_a_key_at_once_supersedes_both(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("strata_operator.workqueue.time.monotonic", lambda: now[0])
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 10)
    queue.add_after("a", 30)
    now[0] += 10
    assert queue.get() == "a"
    queue.done("a")
    queue.add_after("a", 5)
    queue.add("a")
    assert queue.get() == "a"
    queue.done("a")
    now[0] += 100
    queue.add("other")
    assert queue.get() == "other"  # the superseded date of a is no longer due
    assert len(queue) == 0


def test_the_slowest_key_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("strata_operator.workqueue.time.monotonic", lambda: now[0])
    queue: WorkQueue[str] = WorkQueue()
    assert queue.longest_busy() == 0
    queue.add("a")
    queue.get()
    now[0] = 40.0
    assert queue.longest_busy() == 40
    queue.done("a")
    assert queue.longest_busy() == 0


def test_closing_wakes_who_waits() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    thread = threading.Thread(target=lambda: got.append(queue.get()))
    thread.start()
    queue.close()
    thread.join(SOON)
    assert got == [None]
