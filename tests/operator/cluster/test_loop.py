from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from strata_operator.api.errors import UnavailableError
from strata_operator.cluster import loop as rooms
from strata_operator.cluster.loop import Loop

SOON = 30.0


class Scripted(Loop):
    """Turns by calling one function after the other; the last one over and over."""

    def __init__(self, *turns: Callable[[], None]) -> None:
        super().__init__("Pod", silent_seconds=60)
        self.turns = list(turns)

    def turn(self) -> None:
        (self.turns.pop(0) if len(self.turns) > 1 else self.turns[0])()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_RETRY_SECONDS", (0.001,))


@pytest.mark.usefixtures("pauses")
def test_neither_an_outage_nor_a_defect_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    turned = threading.Event()

    def outage() -> None:
        raise UnavailableError("no answer")

    def defect() -> None:
        raise ValueError("cannot be read")

    loop = Scripted(outage, outage, defect, turned.set)
    with caplog.at_level(logging.WARNING):
        loop.start()
        assert turned.wait(SOON)
        loop.stop()
    assert caplog.text.count("scripted of Pod: no answer") == 1
    assert "ValueError: cannot be read" in caplog.text


def test_who_waits_for_a_turn_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_SLOT_SECONDS", 0.001)
    slots, waits, turned = threading.Semaphore(0), threading.Event(), threading.Event()

    def turn() -> None:
        loop.active_at -= 1000
        waits.set()
        with loop.taking_turns(slots):
            turned.set()
        loop.stop()

    loop = Scripted(turn)
    loop.start()
    assert waits.wait(SOON)
    while loop.ailment() is not None:
        turned.wait(0.001)
    slots.release()
    assert turned.wait(SOON)


def test_a_turn_that_does_not_end_is_an_ailment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("strata_operator.cluster.loop.time.monotonic", lambda: now[0])
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        go_on.wait(SOON)

    loop = Scripted(begun.set, wait)
    now[0] += 1000
    assert loop.ailment() is None  # it has not been started
    loop.start()
    assert begun.wait(SOON)
    now[0] += 59
    assert loop.ailment() is None
    now[0] += 2
    assert loop.ailment() == "the scripted of Pod hangs"
    loop.stop()
    go_on.set()


@pytest.mark.parametrize(("seconds", "waits"), [(0.0, True), (5.0, False)], ids=["at once", "after a while"])
def test_after_a_turn_that_ended_at_once_there_is_a_pause(
    seconds: float, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("strata_operator.cluster.loop.time.monotonic", lambda: now[0])
    pauses: list[float] = []

    def first() -> None:
        now[0] += seconds

    loop = Scripted(first, lambda: loop.stop())
    monkeypatch.setattr(loop.stopped, "wait", pauses.append)
    loop._run()
    assert bool(pauses[:-1]) is waits
