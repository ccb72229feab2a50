"""Tables of n-gram embeddings in a store: rows that come from disk and page cache while the caller computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from strata.ngram.counts import TableCounts
from strata.ngram.pages import Pages
from strata.store.reader import Store
from strata.store.tables import TableLayout

Words: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"

_BUFFER_BYTES = 16 << 20


def open_tables(store: Store, device: torch.device, dtype: torch.dtype) -> dict[str, StoredTable]:
    """The tables of a store by their weights' names. Raises CheckpointError naming a file that is missing."""
    return {layout.name: StoredTable(store.path, layout, device, dtype) for layout in store.manifest.contents.tables}


class StoredTable:
    """Rows of numbers in bf16 by their numbers."""

    def __init__(
        self,
        root: Path,
        layout: TableLayout,
        device: torch.device,
        dtype: torch.dtype,
        *,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        """Rows go to ``device`` as ``dtype``; pages of ``buffer_bytes`` are in memory at a time.
        Raises CheckpointError naming a file that is missing or damaged."""
        self._layout, self._device, self._dtype = layout, device, dtype
        self._pages = Pages(root, layout)
        # One thread: steps follow one another, and readers are many.
        self._worker = ThreadPoolExecutor(1, "strata-table")
        self._num_rows = 0
        num_pages = max(1, min(buffer_bytes // layout.page_bytes, layout.num_pages))
        whole = numpy.empty((num_pages, layout.page_bytes), numpy.uint8)
        self._memory = memoryview(whole.reshape(-1).data)
        of_rows = whole[:, : layout.rows_per_page * layout.row_bytes].view(numpy.uint16)
        self._buffer = of_rows.reshape(num_pages, layout.rows_per_page, layout.dim)  # of the same memory
        self._spare: list[_Staging] = []

    @property
    def counts(self) -> TableCounts:
        """Since it was opened."""
        pages, size = self._pages, self._layout.page_bytes
        return TableCounts(self._num_rows, (pages.num_read - pages.num_missed) * size, pages.num_missed * size)

    def begin(self, ids: Tensor) -> PendingRows:
        """Ask for rows, int64 [tokens, heads]; those on a card are waited for."""
        ids = ids.cpu()
        assert ids.numel() == 0 or 0 <= int(ids.min()) <= int(ids.max()) < self._layout.num_rows, (
            f"rows from {int(ids.min())} to {int(ids.max())} are asked for; there are {self._layout.num_rows}"
        )
        staging = self._spare.pop() if self._spare else _Staging(self._device)
        rows = staging.rows(ids.numel(), self._layout.dim)
        self._num_rows += ids.numel()
        read = self._worker.submit(self._gather, ids.flatten().numpy(), rows.view(torch.uint16).numpy())
        return PendingRows(read, rows.view(len(ids), ids.shape[1] * self._layout.dim), partial(self._deliver, staging))

    def forget(self) -> None:
        """Drop what the page cache has of it."""
        self._pages.forget()

    def close(self) -> None:
        """Wait for what was asked for, and close the files."""
        self._worker.shutdown()
        self._pages.close()

    def _gather(self, ids: Words, rows: Words) -> None:
        """ids int64 [n] -> rows uint16 [n, dim], which their bits are, by way of some of their pages at a time."""
        pages, places = numpy.divmod(ids, self._layout.rows_per_page)
        numbers, inverse = numpy.unique(pages, return_inverse=True)
        at_once = len(self._buffer)
        for begin in range(0, len(numbers), at_once):
            wanted = numbers[begin : begin + at_once].tolist()
            self._pages.read(wanted, self._memory)
            if len(numbers) <= at_once:
                rows[:] = self._buffer[inverse, places]
                return
            mine = numpy.flatnonzero((inverse >= begin) & (inverse < begin + len(wanted)))
            rows[mine] = self._buffer[inverse[mine] - begin, places[mine]]

    def _deliver(self, staging: _Staging, rows: Tensor) -> Tensor:
        moved = staging.moved(rows)
        self._spare.append(staging)
        return moved.to(self._dtype)


@dataclass(slots=True)
class PendingRows:
    """Rows that are on their way."""

    read: Future[None]
    rows: Tensor  # once they were read
    deliver: Callable[[Tensor], Tensor]

    def wait(self) -> Tensor:
        """[tokens, heads * dim] in the compute dtype on the compute device; once. Raises CheckpointError naming the
        file that cannot be read or is damaged."""
        self.read.result()
        return self.deliver(self.rows)


class _Staging:
    """Host memory for the rows of a step, from which the card copies; on a CPU they stay in it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.bfloat16)
        self._copied: torch.cuda.Event | None = None

    def rows(self, num_rows: int, dim: int) -> Tensor:
        """bfloat16 [num_rows, dim]."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        size = num_rows * dim
        if size > len(self._memory):
            self._memory = torch.empty(size, dtype=torch.bfloat16, pin_memory=self._device.type == "cuda")
        return self._memory[:size].view(num_rows, dim)

    def moved(self, rows: Tensor) -> Tensor:
        """On the device, in memory of its own."""
        if self._device.type != "cuda":
            return rows.clone()
        moved = rows.to(self._device, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()
        return moved
