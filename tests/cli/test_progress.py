"""How far a long step has come."""

from __future__ import annotations

import logging

import pytest

from strata.cli.progress import Progress


def test_a_terminal_gets_a_bar_for_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(on_terminal=True)
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
    progress = Progress(on_terminal=False)
    for done in range(101):
        progress("load", done * 1_000_000, 100_000_000)
    progress("predict", 5, 10)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"load: {percent} % of 95.4 MiB" for percent in range(0, 101, 10)] + ["predict: 50 % of 10 tokens"]
