"""How far a long step has come."""

from __future__ import annotations

import logging

import pytest

from strata.cli.progress import ProgressBar


def test_a_terminal_gets_a_bar_for_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressBar(on_terminal=True)
    progress("convert", 0, 2_000_000)
    progress("convert", 2_000_000, 2_000_000)
    progress("load", 500_000, 1_000_000)
    progress("decode", 32, 64)
    progress.close()
    shown = capsys.readouterr().err
    assert "convert: 100%" in shown
    assert "2.00M/2.00M" in shown
    assert "load:  50%" in shown
    assert "tokens/s" in shown.split("decode:")[1]


def test_a_log_gets_a_line_for_every_tenth(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    progress = ProgressBar(on_terminal=False, clock=lambda: now)
    for done in range(0, 101, 5):
        now = done / 5
        progress("load", done << 20, 100 << 20)
    progress("predict", 5, 10)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "load: 0 % of 100.0 MiB"
    assert lines[1] == "load: 10 % of 100.0 MiB, 5.0 MiB/s, 18 s left"
    assert lines[-2] == "load: 100 % of 100.0 MiB, 5.0 MiB/s"
    assert lines[-1] == "predict: 50 % of 10 tokens"
    assert len(lines) == 12


def test_what_was_there_before_does_not_count_as_fast(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seconds = iter([0.0, 0.0, 100.0])  # the beginning, and each line
    progress = ProgressBar(on_terminal=False, clock=lambda: next(seconds))
    progress("convert", 600 << 20, 1000 << 20)
    progress("convert", 700 << 20, 1000 << 20)
    assert [record.getMessage() for record in caplog.records] == [
        "convert: 60 % of 1000.0 MiB",
        "convert: 70 % of 1000.0 MiB, 1.0 MiB/s, 5 min 0 s left",
    ]
