"""How a measurement tells how far it is."""

from __future__ import annotations

import pytest

from strata.bench.session import ProgressLine


def test_off_a_terminal_each_phase_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine()
    for phase, done in (("load", 1), ("load", 5), ("decode", 1), ("decode", 2)):
        line(phase, done, 5)
    assert capsys.readouterr().err == "load ...\ndecode ...\n"


def test_on_a_terminal_the_line_is_rewritten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    line = ProgressLine()
    line("load", 1, 2)
    line("load", 2, 2)
    assert capsys.readouterr().err == "\rload  50 % \rload 100 % \n"
