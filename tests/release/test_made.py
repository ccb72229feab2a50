from __future__ import annotations

from pathlib import Path

import pytest

from release import made


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(made, "_STAMPS", tmp_path / "stamps")
    return tmp_path / "dist" / "file"


def test_a_file_is_made_once_for_the_same_inputs(target: Path) -> None:
    made.once(target, "a", lambda path: path.write_text("first"))
    made.once(target, "a", lambda path: pytest.fail("made again"))
    assert target.read_text() == "first"


@pytest.mark.parametrize("touched", ["inputs", "changed", "gone"])
def test_it_is_made_again_for_other_inputs_and_when_it_is_not_what_was_made(target: Path, touched: str) -> None:
    made.once(target, "a", lambda path: path.write_text("first"))
    if touched == "changed":
        target.write_text("other")
    elif touched == "gone":
        target.unlink()
    made.once(target, "b" if touched == "inputs" else "a", lambda path: path.write_text("second"))
    assert target.read_text() == "second"


def test_an_interruption_leaves_the_old_file_and_no_half_one(target: Path) -> None:
    def half(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    made.once(target, "a", lambda path: path.write_text("first"))
    with pytest.raises(KeyboardInterrupt):
        made.once(target, "b", half)
    assert [(path.name, path.read_text()) for path in target.parent.iterdir()] == [("file", "first")]
    made.once(target, "b", lambda path: path.write_text("second"))
    assert target.read_text() == "second"
