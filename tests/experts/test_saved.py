"""Times of earlier starts: read back for the same machine and experts, and for nothing else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from strata.experts.saved import Facts, SavedTimes
from strata.experts.times import Times

FACTS: Facts = {"card": "NVIDIA H200", "driver": "580.65.06", "cpu_threads": 14, "num_experts": 128, "top_k": 8}
TIMES: Times = {1: {0: 25e-6, 1: 55e-6}, 2: {0: 40e-6, 1: 56e-6, 2: 110e-6}}


def test_times_are_kept_for_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "not there yet"
    assert SavedTimes(directory).read(FACTS) == {}
    path = SavedTimes(directory).write(FACTS, TIMES)
    assert SavedTimes(directory).read(FACTS) == TIMES
    assert path == SavedTimes(directory).path(FACTS)
    assert list(directory.iterdir()) == [path]
    assert not caplog.records


@pytest.mark.parametrize(
    "other", [{"card": "NVIDIA GeForce RTX 4090"}, {"driver": "590.1"}, {"cpu_threads": 6}, {"num_experts": 64}]
)
def test_another_machine_or_shape_has_times_of_its_own(tmp_path: Path, other: dict[str, Any]) -> None:
    saved = SavedTimes(tmp_path)
    saved.write(FACTS, TIMES)
    assert saved.read({**FACTS, **other}) == {}
    saved.write({**FACTS, **other}, {1: {0: 1e-6}})
    assert saved.read(FACTS) == TIMES


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "Expecting value", id="empty"),
        pytest.param(b'{"version": 1, "fac', "Unterminated", id="cut off"),
        pytest.param(b"\xff\xfe", "utf-8", id="no text"),
        pytest.param(b"[" * 100_000, "recursion", id="nested without end"),
        pytest.param([1], "another version", id="no object"),
        pytest.param({"version": 0}, "another version", id="of an older version"),
        pytest.param({"facts": {**FACTS, "top_k": 4}}, "another machine or model", id="copied from elsewhere"),
        pytest.param({"seconds_a_layer": [25e-6]}, "damaged", id="no times"),
        pytest.param({"seconds_a_layer": {"1": 25e-6}}, "damaged", id="flat"),
        pytest.param({"seconds_a_layer": {"one": {"0": 25e-6}}}, "invalid literal", id="no number"),
        pytest.param({"seconds_a_layer": {"1": {"0": -1.0}}}, "takes -1.0 s", id="negative"),
        pytest.param({"seconds_a_layer": {"1": {"0": float("nan")}}}, "takes nan s", id="not a number"),
        pytest.param({"seconds_a_layer": {"1": {"0": "25"}}}, "takes '25' s", id="a string"),
        pytest.param({"seconds_a_layer": {"1": {"2": 25e-6}}}, "more experts are fetched", id="impossible"),
    ],
)
def test_what_cannot_be_used_is_ignored_and_said(
    tmp_path: Path, content: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved = SavedTimes(tmp_path)
    path = saved.write(FACTS, TIMES)
    assert path is not None
    if isinstance(content, dict):
        content = {**json.loads(path.read_text()), **content}
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert saved.read(FACTS) == {}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert reason in record.getMessage()
    saved.write(FACTS, TIMES)
    assert saved.read(FACTS) == TIMES


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    saved = SavedTimes(tmp_path / "file")
    assert saved.write(FACTS, TIMES) is None
    assert "are not kept for the next start" in caplog.text
    assert saved.read(FACTS) == {}
