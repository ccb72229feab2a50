"""Rows that come from a table's files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.errors import CheckpointError
from strata.ngram.stored import StoredTable
from strata.store.tables import TableLayout
from tests.ngram.tables import random_rows, write_table

CPU = torch.device("cpu")


@pytest.fixture
def rows() -> torch.Tensor:
    """Of some twenty pages, the last one not full."""
    return random_rows(247, 160)


@pytest.fixture
def layout(tmp_path: Path, rows: torch.Tensor) -> TableLayout:
    return write_table(tmp_path, rows)


@pytest.fixture
def table(tmp_path: Path, layout: TableLayout) -> Iterator[StoredTable]:
    table = StoredTable(tmp_path, layout, CPU, torch.float32)
    yield table
    table.close()


@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (7, 4), (300, 16), (0, 16)])
def test_rows_come_as_they_were_asked_for(table: StoredTable, rows: torch.Tensor, shape: tuple[int, int]) -> None:
    ids = torch.randint(0, len(rows), shape, generator=torch.Generator().manual_seed(1))
    found = table.begin(ids).wait()
    assert found.dtype == torch.float32
    assert torch.equal(found, rows[ids].flatten(1).float())


@pytest.mark.parametrize("dim", [4, 128, 160, 256, 2044, 2046, 5000])
def test_rows_of_any_width_in_few_pages_at_a_time(tmp_path: Path, dim: int) -> None:
    rows = random_rows(100, dim)
    layout = write_table(tmp_path, rows, pages_per_shard=2)
    table = StoredTable(tmp_path, layout, CPU, torch.bfloat16, buffer_bytes=3 * layout.page_bytes)
    ids = torch.randint(0, 100, (50, 6), generator=torch.Generator().manual_seed(1))
    assert torch.equal(table.begin(ids).wait(), rows[ids].flatten(1))
    table.close()


def test_steps_may_be_asked_for_before_those_before_are_taken(table: StoredTable, rows: torch.Tensor) -> None:
    asked = [torch.randint(0, len(rows), (size, 16)) for size in (3, 200, 1)]
    pending = [table.begin(ids) for ids in asked]
    found = [each.wait() for each in reversed(pending)]
    again = table.begin(asked[0])
    for ids, got in zip(reversed(asked), found, strict=True):
        assert torch.equal(got, rows[ids].flatten(1).float()), "what was taken stays as it is"
    assert torch.equal(again.wait(), rows[asked[0]].flatten(1).float())


def test_inference_mode_of_either_side_does_not_matter(table: StoredTable, rows: torch.Tensor) -> None:
    ids = torch.tensor([[0, 246]])
    with torch.inference_mode():
        assert torch.equal(table.begin(ids).wait(), rows[ids].flatten(1).float())
    assert torch.equal(table.begin(ids).wait(), rows[ids].flatten(1).float())


def test_a_page_is_read_once_for_all_of_its_rows(table: StoredTable, layout: TableLayout) -> None:
    ids = torch.tensor([[0, 1, 0], [11, 12, 246]])
    table.begin(ids).wait()
    counts = table.counts
    assert (counts.rows, counts.cached_bytes + counts.disk_bytes) == (6, 3 * 4096)


def test_pages_that_the_cache_has_not_are_counted(table: StoredTable, rows: torch.Tensor) -> None:
    ids = torch.arange(len(rows))[None]
    table.begin(ids).wait()
    before = table.counts.disk_bytes
    table.begin(ids).wait()
    assert table.counts.disk_bytes == before, "the page cache has them all now"


def test_pages_come_from_the_disk_many_at_a_time(
    table: StoredTable, rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, together = os.preadv, threading.Barrier(2)

    def preadv(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        if offset == 0:
            together.wait(60)  # the first pages of two files
        return read(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr("strata.ngram.pages._AT_ONCE", 1)
    ids = torch.arange(72).view(2, 36)  # the first two files
    assert torch.equal(table.begin(ids).wait(), rows[ids].flatten(1).float())
    assert table.counts.disk_bytes == 6 * 4096


def test_a_file_system_that_does_not_tell_what_is_cached(
    table: StoredTable, rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def preadv(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return read(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    ids = torch.arange(len(rows))[None]
    assert torch.equal(table.begin(ids).wait(), rows.flatten()[None].float())
    assert table.counts.disk_bytes == 0


@pytest.mark.parametrize("cached", [True, False])
def test_a_read_that_fails_names_its_file(
    table: StoredTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cached: bool
) -> None:
    def preadv(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags and not cached:
            raise BlockingIOError
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", preadv)
    pending = table.begin(torch.tensor([[40]]))
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/tables/1-00002-of-\d+.bin cannot be read: Input/output"):
        pending.wait()


def test_a_file_that_shrinks_is_noticed(table: StoredTable, tmp_path: Path, layout: TableLayout) -> None:
    os.truncate(tmp_path / layout.files[0], 4096 + 100)
    for row in (12, 24):  # on the page that is cut, and on the one behind it
        with pytest.raises(CheckpointError, match=r"ends inside page \d. The store is damaged"):
            table.begin(torch.tensor([[row]])).wait()


@pytest.mark.parametrize("place", [0, 4000, 4096 + 17, 2 * 4096 - 1], ids=str)
def test_a_page_that_is_altered_is_noticed(tmp_path: Path, layout: TableLayout, place: int) -> None:
    with (tmp_path / layout.files[1]).open("r+b") as stream:
        stream.seek(place)
        (value,) = stream.read(1)
        stream.seek(place)
        stream.write(bytes([value ^ 1]))
    table = StoredTable(tmp_path, layout, CPU, torch.float32)
    page = place // 4096
    with pytest.raises(CheckpointError, match=f"00002-of-.*page {page} is not as its checksum says"):
        table.begin(torch.tensor([[12 * (3 + page)]])).wait()
    table.begin(torch.tensor([[0]])).wait()
    table.close()


def test_zeros_and_pages_in_each_others_place_are_noticed(tmp_path: Path, layout: TableLayout) -> None:
    with (tmp_path / layout.files[0]).open("r+b") as stream:
        first = stream.read(4096)
        stream.write(first)
        stream.write(bytes(4096))
    table = StoredTable(tmp_path, layout, CPU, torch.float32)
    for row in (12, 24):
        with pytest.raises(CheckpointError, match="checksum"):
            table.begin(torch.tensor([[row]])).wait()
    table.close()


def test_files_must_be_there_whole(tmp_path: Path, layout: TableLayout) -> None:
    os.truncate(tmp_path / layout.files[1], 4096)
    with pytest.raises(CheckpointError, match=r"1-00002-of-\d+.bin: it has 4096 bytes, not 12288"):
        StoredTable(tmp_path, layout, CPU, torch.float32)
    (tmp_path / layout.files[0]).unlink()
    with pytest.raises(CheckpointError, match=r"1-00001-of-\d+.bin: it cannot be read: No such file"):
        StoredTable(tmp_path, layout, CPU, torch.float32)


def test_only_rows_that_there_are_may_be_asked_for(table: StoredTable, rows: torch.Tensor) -> None:
    for wrong in (-1, len(rows)):
        with pytest.raises(AssertionError, match="there are 247"):
            table.begin(torch.tensor([[wrong]]))
