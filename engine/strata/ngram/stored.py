"""Tables of n-gram embeddings in a store: rows that come from disk and page cache while the caller computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from strata.ngram.pages import PageCounts, Pages
from strata.store.reader import Store
from strata.store.shard import bytes_of
from strata.store.tables import TableLayout

_BUFFER_BYTES = 16 << 20


def open_tables(store: Store, device: torch.device, dtype: torch.dtype) -> dict[str, StoredTable]:
    """The tables of a store by their weights' names. Raises CheckpointError naming a file that is missing."""
    return {layout.name: StoredTable(store.path, layout, device, dtype) for layout in store.manifest.contents.tables}


@dataclass(frozen=True, slots=True)
class TableCounts:
    """What was read of a table."""

    rows: int  # that were asked for
    pages: int  # that hold them, each once for all rows of a step
    bytes: int  # of these pages
    missed: int  # pages that were not in the page cache


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
        self._buffer = torch.empty(num_pages, layout.page_bytes, dtype=torch.uint8)
        self._spare: list[_Staging] = []

    @property
    def counts(self) -> TableCounts:
        """Since it was opened."""
        read: PageCounts = self._pages.counts
        return TableCounts(self._num_rows, read.pages, read.bytes, read.missed)

    def begin(self, ids: Tensor) -> PendingRows:
        """Ask for rows, int64 [tokens, heads]; those on a card are waited for."""
        ids = ids.cpu()
        assert ids.numel() == 0 or 0 <= int(ids.min()) <= int(ids.max()) < self._layout.num_rows, (
            f"rows from {int(ids.min())} to {int(ids.max())} are asked for; there are {self._layout.num_rows}"
        )
        staging = self._spare.pop() if self._spare else _Staging(self._device)
        rows = staging.rows(ids.numel(), self._layout.dim)
        self._num_rows += ids.numel()
        read = self._worker.submit(self._gather, ids.flatten(), rows)
        return PendingRows(read, rows.view(len(ids), ids.shape[1] * self._layout.dim), partial(self._deliver, staging))

    def forget(self) -> None:
        """Drop what the page cache has of it."""
        self._pages.forget()

    def close(self) -> None:
        """Wait for what was asked for, and close the files."""
        self._worker.shutdown()
        self._pages.close()

    @torch.inference_mode()
    def _gather(self, ids: Tensor, rows: Tensor) -> None:
        """Rows into pinned memory, by way of some of their pages at a time."""
        layout = self._layout
        places = torch.div(ids, layout.rows_per_page, rounding_mode="floor")
        numbers, inverse = torch.unique(places, return_inverse=True)
        slots = (ids % layout.rows_per_page) + inverse * layout.rows_per_page  # among the rows of all these pages
        at_once, whole = len(self._buffer), layout.rows_per_page * layout.row_bytes
        order = slots.argsort() if len(numbers) > at_once else None
        done = 0
        for begin in range(0, len(numbers), at_once):
            wanted = numbers[begin : begin + at_once]
            held = self._buffer[: len(wanted)]
            self._pages.read(wanted.tolist(), bytes_of(held.view(-1)))
            of_rows = held[:, :whole].reshape(-1, layout.row_bytes).view(torch.bfloat16)
            if order is None:
                torch.index_select(of_rows, 0, slots, out=rows)
                return
            last = (begin + len(wanted)) * layout.rows_per_page
            end = int(torch.searchsorted(slots[order], last))
            mine = order[done:end]
            rows[mine] = of_rows[slots[mine] - begin * layout.rows_per_page]
            done = end

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
