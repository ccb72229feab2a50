"""How fast rows of a table of n-grams come from the page cache and from the disk, beside plain reads of its pages.

A step asks for all rows of its tokens at once. Warm: the page cache has all of them; cold: none.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strata.errors import StorageError
from strata.ngram.stored import StoredTable
from strata.plan.ngrams import NUM_READERS
from strata.plan.units import format_bytes
from strata.store.encode import encode_pages
from strata.store.shard import write_shard
from strata.store.sources.base import WHOLE, SourceTensor
from strata.store.tables import TableLayout

SECONDS = 0.5  # of one measurement
PASSES = 3  # at least
_POOL_ROWS = 1 << 16  # whose numbers are random; the table is a walk around them
_SHARD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Measurement:
    """Steps of ``tokens`` tokens."""

    tokens: int
    rows: int  # of a step
    warm_seconds: float  # of a step
    cold_seconds: float
    plain_seconds: float  # of cold reads of as many pages by as many threads, without checksums and rows
    missed: float  # share of a cold step's pages that were not in the page cache

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        rates = {"warm_rows_per_second": self.rows / self.warm_seconds}
        rates["cold_rows_per_second"] = self.rows / self.cold_seconds
        return {**asdict(self), **rates}


_COLUMNS = (("tokens", 7), ("rows", 8), ("warm, ms", 9), ("rows/s", 10), ("cold, ms", 9), ("rows/s", 10))
HEADER = " ".join(f"{name:>{width}}" for name, width in (*_COLUMNS, ("plain, ms", 10), ("missed", 7)))


def line(found: Measurement) -> str:
    """For people."""
    warm, cold, plain = (1e3 * seconds for seconds in (found.warm_seconds, found.cold_seconds, found.plain_seconds))
    return (
        f"{found.tokens:>7} {found.rows:>8} {warm:>9.2f} {found.rows / found.warm_seconds:>10.0f} {cold:>9.2f} "
        f"{found.rows / found.cold_seconds:>10.0f} {plain:>10.2f} {found.missed:>6.0%}"
    )


def run(directory: Path, *, num_bytes: int, dim: int, heads: int, tokens: Sequence[int]) -> Iterator[Measurement]:
    """Measure a table of ``num_bytes``, which is written to ``directory`` and removed in the end: rows of ``dim``
    numbers, of which a token reads ``heads``. Raises StorageError where it cannot be written."""
    layout = _layout(num_bytes, dim)
    try:
        with tempfile.TemporaryDirectory(prefix="strata-table-", dir=directory) as root:
            _write(Path(root), layout)
            table = StoredTable(Path(root), layout, torch.device("cpu"), torch.bfloat16)
            try:
                for count in tokens:
                    yield _measure(table, Path(root), layout, count, heads)
            finally:
                table.close()
    except OSError as error:
        size = format_bytes(layout.num_bytes, round_up=True)
        raise StorageError(f"cannot write a table of {size} to {directory}: {error.strerror or error}") from error


def _layout(num_bytes: int, dim: int) -> TableLayout:
    one = TableLayout("rows", 1, 1, dim, 1)
    pages = max(1, num_bytes // one.page_bytes)
    return TableLayout("rows", 1, pages * one.rows_per_page, dim, max(1, _SHARD_BYTES // one.page_bytes))


def _write(root: Path, layout: TableLayout) -> None:
    source: Any = _Walk(layout)
    for index, file in enumerate(layout.files):
        write_shard(root, file, encode_pages(source, layout, index))


class _Walk:
    """A source whose rows are some random ones again and again."""

    origin = "random rows"

    def __init__(self, layout: TableLayout) -> None:
        generator = torch.Generator().manual_seed(0)
        self._rows = torch.randn(_POOL_ROWS, layout.dim, generator=generator).bfloat16()
        self.tensors = {layout.name: SourceTensor((layout.num_rows, layout.dim), "BF16")}

    def read(self, name: str, rows: slice = WHOLE) -> Tensor:
        return self._rows[torch.arange(rows.start, rows.stop) % _POOL_ROWS]


def _measure(table: StoredTable, root: Path, layout: TableLayout, tokens: int, heads: int) -> Measurement:
    generator = torch.Generator().manual_seed(tokens)

    def ids() -> Tensor:
        return torch.randint(0, layout.num_rows, (tokens, heads), generator=generator)

    def cold(step: Callable[[], object]) -> Callable[[], float]:
        def timed() -> float:
            table.forget()
            return _seconds(step)

        return timed

    before = table.counts
    cold_seconds = _repeated(cold(lambda: table.begin(ids()).wait()))
    after = table.counts
    with _Plain(root, layout) as plain:
        plain_seconds = _repeated(cold(lambda: plain.read(ids().flatten() // layout.rows_per_page)))
    again = ids()
    table.begin(again).wait()
    warm_seconds = _repeated(lambda: _seconds(lambda: table.begin(again).wait()))
    cached, disk = after.cached_bytes - before.cached_bytes, after.disk_bytes - before.disk_bytes
    return Measurement(tokens, tokens * heads, warm_seconds, cold_seconds, plain_seconds, disk / (cached + disk))


class _Plain:
    """Reads of pages, and nothing else."""

    def __init__(self, root: Path, layout: TableLayout) -> None:
        self._layout = layout
        self._files = [os.open(root / file, os.O_RDONLY) for file in layout.files]
        for file in self._files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        self._threads = ThreadPoolExecutor(NUM_READERS)

    def read(self, pages: Tensor) -> None:
        numbers = pages.unique().tolist()
        share = -(-len(numbers) // NUM_READERS)

        def some(begin: int) -> None:
            for number in numbers[begin : begin + share]:
                file, page = divmod(number, self._layout.pages_per_shard)
                os.pread(self._files[file], self._layout.page_bytes, page * self._layout.page_bytes)

        for _ in self._threads.map(some, range(0, len(numbers), share)):
            pass

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for file in self._files:
            os.close(file)


def _seconds(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _repeated(timed: Callable[[], float]) -> float:
    """The median of several."""
    found: list[float] = []
    while len(found) < PASSES or sum(found) < SECONDS:
        found.append(timed())
    return sorted(found)[len(found) // 2]
