"""What the process does between pipe and loop."""

from __future__ import annotations

import multiprocessing

import pytest

from strata.config import EngineConfig
from strata.engine.messages import LoadProgress
from strata.engine.process import _Inbox, _throttled, run_engine
from tests.engine.stub_loop import LOAD


def test_progress_is_throttled_but_edges_are_not() -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        report = _throttled(theirs, _Inbox(theirs))
        reports = [LoadProgress(phase, done, 10_000) for phase in ("convert", "load") for done in range(10_001)]
        for progress in reports:
            report(progress)
        received = []
        while ours.poll():
            received.append(ours.recv())
    edges = [LoadProgress(phase, done, 10_000) for phase in ("convert", "load") for done in (0, 10_000)]
    assert [progress for progress in received if progress in edges] == edges
    assert len(received) < len(reports) / 10


@pytest.mark.parametrize(("seconds", "expected"), [(0, 5), (3600, 1)])
def test_the_same_report_is_sent_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, seconds: int, expected: int
) -> None:
    """It tells whoever watches that loading goes on, though no byte is new."""
    monkeypatch.setattr("strata.engine.process.PROGRESS_SECONDS", seconds)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        report = _throttled(theirs, _Inbox(theirs))
        for _ in range(5):
            report(LoadProgress("download", 7, 7))
        received = 0
        while ours.poll():
            assert ours.recv() == LoadProgress("download", 7, 7)
            received += 1
    assert received == expected


def test_a_command_that_cannot_be_read_ends_the_process() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_engine, args=(theirs, EngineConfig(model="stub"), LOAD, 30), daemon=True)
    process.start()
    try:
        with ours:
            ours.send_bytes(b"no pickle")
            process.join(60)
        assert process.exitcode is not None
    finally:
        process.kill()
