from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from strata_operator import workers
from strata_operator.api.errors import UnavailableError
from strata_operator.workers import Result, Workers
from strata_operator.workqueue import WorkQueue

SOON = 30.0  # seconds that a thread gets before a test gives up on it


class Crew:
    """Workers over a function, with their outcomes."""

    def __init__(self, work: Callable[[str], Result], *, count: int = 2) -> None:
        self.queue: WorkQueue[str] = WorkQueue()
        self.outcomes: list[str] = []
        self.workers = Workers(self.queue, work, count=count, on_done=lambda outcome, _: self.outcomes.append(outcome))
        self.workers.start()


def test_a_failure_is_tried_again_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FIRST_RETRY_SECONDS", 0.001)
    tries: list[str] = []
    finished = threading.Event()

    def work(key: str) -> Result:
        tries.append(key)
        if key == "bad" and tries.count("bad") == 1:
            raise UnavailableError("no answer")
        if key == "bad" and tries.count("bad") == 2:
            raise RuntimeError("a defect")
        if key == "bad":
            finished.set()
        return Result("changed")

    crew = Crew(work)
    crew.queue.add("bad")
    crew.queue.add("good")
    assert finished.wait(SOON)
    assert crew.workers.stop(SOON)
    assert sorted(tries) == ["bad", "bad", "bad", "good"]
    assert sorted(crew.outcomes) == ["changed", "changed", "error", "retry"]


def test_pauses_grow_to_a_limit_and_start_anew_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_operator.workers.random.uniform", lambda low, high: 1.0)
    pauses: list[float] = []
    fails = True

    def work(key: str) -> Result:
        if fails:
            raise UnavailableError("no answer")
        return Result("unchanged")

    queue: WorkQueue[str] = WorkQueue()
    monkeypatch.setattr(queue, "add_after", lambda key, seconds: pauses.append(seconds))
    crew = Workers(queue, work, count=1, on_done=lambda *_: None)
    for _ in range(12):
        crew._one("a")
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == workers.LAST_RETRY_SECONDS
    fails = False
    crew._one("a")
    fails = True
    crew._one("a")
    assert pauses[-1] == 0.5


def test_another_look_is_taken_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Semaphore(0)

    def work(key: str) -> Result:
        looked.release()
        return Result("unchanged", again_in=0.001)

    crew = Crew(work)
    crew.queue.add("a")
    assert all(looked.acquire(timeout=SOON) for _ in range(3))
    assert crew.workers.stop(SOON)


def test_stopping_waits_for_what_is_under_way() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(key: str) -> Result:
        begun.set()
        go_on.wait(SOON)
        return Result("changed")

    crew = Crew(work)
    crew.queue.add("a")
    assert begun.wait(SOON)
    assert not crew.workers.stop(0.01)
    go_on.set()
    assert crew.workers.stop(SOON)
    assert crew.outcomes == ["changed"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_ended_by_a_defect_is_an_ailment() -> None:
    queue: WorkQueue[str] = WorkQueue()

    def on_done(outcome: str, seconds: float) -> None:
        raise RuntimeError("a defect beside the reconcile")

    crew = Workers(queue, lambda key: Result("changed"), count=2, on_done=on_done)
    assert crew.ailment() is None  # a standby has not started any
    crew.start()
    assert crew.ailment() is None
    queue.add("a")
    while crew.ailment() is None:
        time.sleep(0.001)
    assert crew.ailment() == "a worker has ended"
    crew.stop(SOON)
    assert crew.ailment() is None  # now they were told to


def test_workers_that_never_started_are_stopped_at_once() -> None:
    crew = Workers(WorkQueue[str](), lambda key: Result("changed"), count=1, on_done=lambda *_: None)
    assert crew.stop(SOON)
