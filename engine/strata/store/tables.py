"""How a table lies in a store, of which tokens read a few rows: as pages, each some whole rows and a checksum.

A row is read with one page, as disk and page cache have it. At the page's end is the xxh3_64 of what is before it, with
the page's number as the seed: nobody reads all of a table again to compare one checksum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from strata.plan.ngrams import ITEM_BYTES, page_bytes, rows_per_page
from strata.plan.shape import Role, TensorSpec

SHARD_FACTOR = 8  # a table's files are as much larger than others: each stays open


@dataclass(frozen=True)
class TableLayout:
    """Where each row of a table lies."""

    name: str  # of the weight [rows, dim]
    number: int  # among the store's tables, from 1
    num_rows: int
    dim: int
    pages_per_shard: int
    is_hollow: bool = False  # nothing was written, all rows are zero and no page has a checksum: to measure with

    @property
    def row_bytes(self) -> int:
        return ITEM_BYTES * self.dim

    @cached_property
    def page_bytes(self) -> int:
        return page_bytes(self.dim)

    @cached_property
    def rows_per_page(self) -> int:
        return rows_per_page(self.dim)

    @property
    def num_pages(self) -> int:
        return -(-self.num_rows // self.rows_per_page)

    @property
    def num_bytes(self) -> int:
        """On disk."""
        return self.num_pages * self.page_bytes

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The shards' names."""
        count = -(-self.num_pages // self.pages_per_shard)
        return tuple(f"tables/{self.number}-{index + 1:05d}-of-{count:05d}.bin" for index in range(count))

    def pages(self, file: int) -> range:
        """Of a file."""
        return range(file * self.pages_per_shard, min((file + 1) * self.pages_per_shard, self.num_pages))


def table_layouts(specs: Iterable[TensorSpec], shard_size: int, *, is_hollow: bool = False) -> tuple[TableLayout, ...]:
    """Of all tables among the tensors of a model, in files of ``SHARD_FACTOR`` times ``shard_size`` at most."""
    found: list[TableLayout] = []
    for spec in specs:
        if spec.role is Role.NGRAMS:
            num_rows, dim = spec.shape
            layout = TableLayout(spec.name, len(found) + 1, num_rows, dim, 1, is_hollow)
            pages = max(1, SHARD_FACTOR * shard_size // layout.page_bytes)
            found.append(replace(layout, pages_per_shard=pages))
    return tuple(found)
