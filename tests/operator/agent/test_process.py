from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import pytest

from strata_operator.agent.fake import FakeDriver, gpus_of, rtx3090
from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.agent.process import FAILED_TURNS, STUCK_SECONDS, Process
from strata_operator.cluster.client import Client
from tests.operator.cluster.fake import FakeClient


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """Not started: its turns are the test's."""
    client = cast("Client", FakeClient())
    return Process(gpus_of(FakeDriver([rtx3090()])), FakeSysfs(tmp_path), "n", lambda on_request: client)


def test_a_defect_in_a_turn_does_not_end_the_agent(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def defect() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(process.agent, "turn", defect)
        process._turn()
        assert "a turn failed" in caplog.text
        assert process.ailments() == []
        for _ in range(FAILED_TURNS - 1):
            process._turn()
        assert process.ailments() == ["every turn fails: see the log"]
    process._turn()
    assert process.agent.snapshot.turn is not None
    assert process.ailments() == []


def test_it_is_ready_when_both_objects_and_the_cards_are_known(process: Process) -> None:
    assert process.unsynced() == ["StrataNode", "Node"]
    for loop in process.loops:
        loop.synced.set()
    assert process.unsynced() == ["the first turn"]
    process._turn()
    assert process.unsynced() == []


def test_a_turn_that_hangs_is_told(process: Process) -> None:
    assert process.ailments() == []
    process._active_at -= STUCK_SECONDS + 1
    assert process.ailments() == ["a turn hangs"]


def test_a_watch_that_hangs_is_told(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.loops[0], "ailment", lambda: "the watch of StrataNode hangs")
    assert process.ailments() == ["the watch of StrataNode hangs"]
