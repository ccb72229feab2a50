"""What the process does between pipe and loop."""

from __future__ import annotations

import multiprocessing

from strata.engine.messages import LoadProgress
from strata.engine.process import _Inbox, _throttled


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
