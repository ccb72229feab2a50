"""The file of experts that host memory has no room for."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.errors import StorageError
from strata.experts.spill import Spill
from strata.store.pieces import cached_share


@pytest.fixture(autouse=True)
def any_directory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever /tmp is."""
    if request.node.name != "test_a_directory_in_memory_is_refused":
        monkeypatch.setattr("strata.experts.spill._is_memory", lambda directory: False)


def test_what_was_written_is_there_after_it_left_memory(tmp_path: Path) -> None:
    spill = Spill(3 << 20, tmp_path / "cache")
    written = torch.randint(0, 256, (3 << 20,), dtype=torch.uint8)
    spill.tensor.copy_(written)
    assert spill.settle() > 0
    assert torch.equal(spill.tensor, written)
    assert not list((tmp_path / "cache").iterdir()), "it has no name"


def test_a_part_is_read_ahead(tmp_path: Path) -> None:
    spill = Spill(8 << 20, tmp_path)
    spill.tensor.fill_(1)
    file = spill._file.fileno()
    os.fdatasync(file)
    spill._map.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_share(file):
        pytest.skip("this file system's files are memory")
    spill.read_ahead((3 << 20) + 77, 2 << 20)
    until = time.monotonic() + 20
    while cached_share(file) < 0.25:
        assert time.monotonic() < until, "it is not read"
    assert cached_share(file) < 0.6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_has_no_room_is_named(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    message = rf"5\.0 MiB of experts .* do not fit into {tmp_path} \({os.strerror(code)}; .* are free\)\. Make"
    with pytest.raises(StorageError, match=message):
        Spill(5 << 20, tmp_path)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"do not fit into .*file/cache \(Not a directory; 0 B are free"):
        Spill(1 << 20, tmp_path / "file" / "cache")


def test_a_directory_in_memory_is_refused() -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        pytest.raises(StorageError, match=r"lies in memory, and host memory has no room for 1\.0 MiB of experts"),
    ):
        Spill(1 << 20, Path(directory))
