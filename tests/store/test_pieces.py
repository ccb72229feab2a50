"""Reading files past the page cache, and what becomes of it where that cannot be done."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from strata.store import pieces
from strata.store.pieces import ALIGNMENT, cached_share, read_pieces

DATA = os.urandom(5 * ALIGNMENT + 77)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is on the disk and not in the page cache."""
    pieces._tell.cache_clear()
    path = tmp_path / "f"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_share(file.fileno()):
            pytest.skip("this file system's files are memory")
    return path


def share(path: Path) -> float:
    with path.open("rb") as file:
        return cached_share(file.fileno())


def read(path: Path, piece_bytes: int, *, past_cache: bool = True) -> list[bytes]:
    return [bytes(piece) for piece in read_pieces(path, piece_bytes, past_cache=past_cache)]


@pytest.mark.parametrize(
    ("piece_bytes", "sizes"),
    [
        pytest.param(2 * ALIGNMENT, [2 * ALIGNMENT, 2 * ALIGNMENT, ALIGNMENT + 77], id="the last is shorter"),
        pytest.param(8 * ALIGNMENT, [len(DATA)], id="one is enough"),
    ],
)
@pytest.mark.parametrize("past_cache", [True, False])
def test_pieces_are_the_file(path: Path, piece_bytes: int, sizes: list[int], past_cache: bool) -> None:
    found = read(path, piece_bytes, past_cache=past_cache)
    assert [len(piece) for piece in found] == sizes
    assert b"".join(found) == DATA
    assert share(path) == (0.0 if past_cache else 1.0)


def test_a_file_of_whole_pieces_ends(path: Path) -> None:
    path.write_bytes(DATA[: 4 * ALIGNMENT])
    assert read(path, 2 * ALIGNMENT) == [DATA[: 2 * ALIGNMENT], DATA[2 * ALIGNMENT : 4 * ALIGNMENT]]


def test_an_empty_file_has_no_piece(path: Path) -> None:
    path.write_bytes(b"")
    assert read(path, ALIGNMENT) == []


def test_what_the_page_cache_has_is_taken_from_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(path, ALIGNMENT, past_cache=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: pytest.fail("the disk was to be read"))
    assert b"".join(read(path, ALIGNMENT)) == DATA


def test_a_file_system_that_refuses_is_read_through_the_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert [read(path, 8 * ALIGNMENT) for _ in range(2)] == [[DATA], [DATA]]
    assert share(path) == 1.0
    assert caplog.messages == [f"{path.parent} cannot be read past the page cache; its files are read through it"]


def test_a_disk_that_wants_larger_blocks_is_read_through_the_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_at = os.preadv

    def refuse(file: int, buffers: Any, offset: int) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return read_at(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    assert b"".join(read(path, 2 * ALIGNMENT)) == DATA


def test_other_errors_are_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="Input/output error"):
        read(path, ALIGNMENT)
