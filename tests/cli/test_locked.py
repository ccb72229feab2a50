"""Models, caches and targets in directories that may not be looked into: one line says which, and nothing is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strata.cli.main import build_parser, main
from strata.cli.serve_options import engine_config
from strata.engine.load import load_engine
from strata.errors import CheckpointError, StorageError
from strata.store.directories import nearest_existing
from strata.store.locate import resolve
from strata.store.unused import KEEP_DAYS
from tests.engine.tiny_llama import write_checkpoint
from tests.file_modes import bound_by_modes

LOCKED, NO_SEARCH, NO_LIST = 0o000, 0o600, 0o300


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, int], None]]:
    """Gives a directory a mode until the test ends."""
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    locked: list[Path] = []

    def change(path: Path, mode: int) -> None:
        path.chmod(mode)
        locked.append(path)

    with bound_by_modes():
        yield change
    for path in locked:
        path.chmod(0o700)


def load(model: Path) -> None:
    """As the engine's process does for ``strata serve``."""
    load_engine(engine_config(build_parser().parse_args(["serve", str(model), "--device", "cpu"])))


@pytest.mark.parametrize("mode", [LOCKED, NO_SEARCH], ids=["locked", "without search"])
@pytest.mark.parametrize("depth", [0, 1], ids=["itself", "its parent"])
@pytest.mark.parametrize("what", ["directory", "config.json", "model.gguf"])
def test_a_model_in_a_locked_directory_is_named(
    what: str,
    depth: int,
    mode: int,
    tmp_path: Path,
    lock: Callable[[Path, int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = write_checkpoint(tmp_path / "models" / "tiny")
    (directory / "model.gguf").write_bytes(b"GGUF")
    lock(directory.parent if depth else directory, mode)
    model = directory if what == "directory" else directory / what
    assert main(["plan", str(model)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"strata: error: {model}")
    assert "cannot be read: Permission denied" in error
    assert main(["doctor", str(model)]) == 1
    assert "cannot be read: Permission denied" in capsys.readouterr().out
    assert main(["convert", str(model), "--output-dir", str(tmp_path / "store")]) == 2
    assert "cannot be read: Permission denied" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        load(model)


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path, lock: Callable[[Path, int], None]) -> None:
    (tmp_path / "empty").mkdir()
    lock(tmp_path / "empty", NO_LIST)
    with pytest.raises(CheckpointError, match=r"empty cannot be read: Permission denied"):
        load(tmp_path / "empty")


def test_files_that_lead_to_a_locked_directory_are_named(
    tmp_path: Path, lock: Callable[[Path, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a cache whose files are links to what another user has fetched."""
    checkpoint = write_checkpoint(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for file in checkpoint.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    lock(checkpoint, LOCKED)
    assert main(["plan", str(tmp_path / "snapshot")]) == 2
    assert f"{tmp_path}/snapshot/config.json cannot be read: Permission denied" in capsys.readouterr().err


def test_a_locked_place_for_stores_is_named(
    tmp_path: Path, lock: Callable[[Path, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_checkpoint(tmp_path / "model")
    (tmp_path / "cache").mkdir()
    lock(tmp_path / "cache", LOCKED)
    with pytest.raises(StorageError, match=r"cannot write .*/cache: Permission denied"):
        load(model)
    assert main(["convert", str(model), "--output-dir", str(tmp_path / "cache" / "store")]) == 3
    assert "cannot write" in capsys.readouterr().err


def test_what_is_in_a_locked_directory_is_not_there(tmp_path: Path, lock: Callable[[Path, int], None]) -> None:
    lock(tmp_path, LOCKED)
    assert nearest_existing(tmp_path / "home" / "cache") == tmp_path


def test_a_cache_that_cannot_be_listed_keeps_no_store_from_being_served(
    tmp_path: Path, lock: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(KEEP_DAYS, "30")
    store = tmp_path / "store"
    assert main(["convert", str(write_checkpoint(tmp_path / "model")), "--output-dir", str(store)]) == 0
    (tmp_path / "cache").mkdir()
    lock(tmp_path / "cache", NO_LIST)
    assert resolve(str(store), "int4") == store
    assert "cache cannot be looked through" in caplog.text
