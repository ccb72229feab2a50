"""Measuring a table of n-grams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata.bench import ngrams
from strata.cli.main import main


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "SECONDS", 0)


def test_steps_are_measured_and_nothing_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["bench", "ngrams", str(tmp_path), "--gib", "0.01", "--tokens", "1,40", "--heads", "4"]
    assert main([*options, "--json"]) == 0
    one, many = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["tokens"], one["rows"], many["tokens"], many["rows"]) == (1, 4, 40, 160)
    assert many["warm_rows_per_second"] * many["warm_seconds"] == pytest.approx(160)
    assert 0 <= many["missed"] <= 1
    assert main(options) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ngrams", str(tmp_path / "none"), "--gib", "0.01"]) == 3
    assert f"to {tmp_path}/none: No such file or directory" in capsys.readouterr().err
