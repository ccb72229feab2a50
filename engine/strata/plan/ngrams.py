"""What tables of n-grams take: bytes on disk, the RAM left for their pages, and what it costs to read the others.

A table is neither pinned nor loaded: its rows are read with their pages, through the page cache, which has what RAM is
left by all else, and which a control group counts as memory that can be had back.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.config.ngram import NGramConfig
from strata.plan.units import format_bytes

PAGE_ALIGNMENT = 4096  # bytes: of Linux and of disks
CHECKSUM_BYTES = 8  # at the end of a page
ITEM_BYTES = 2  # of a number: bf16

NUM_READERS = 32  # reads that a disk has at a time: NVMe serves that many in little more than the time of one
READ_SECONDS = 100e-6  # of one read of a page from NVMe, as its makers' data sheets have it


def page_bytes(dim: int) -> int:
    """Of a page of rows of ``dim`` numbers."""
    return -(-(ITEM_BYTES * dim + CHECKSUM_BYTES) // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def rows_per_page(dim: int) -> int:
    """Whole rows in a page."""
    return (page_bytes(dim) - CHECKSUM_BYTES) // (ITEM_BYTES * dim)


def table_bytes(ngrams: NGramConfig) -> int:
    """Of all tables on disk."""
    pages = sum(-(-ngrams.num_rows(layer) // rows_per_page(ngrams.head_dim)) for layer in ngrams.layers)
    return pages * page_bytes(ngrams.head_dim)


@dataclass(frozen=True, slots=True)
class TableFit:
    """How the tables of a model go with a machine. ``ram_bytes``: left for their pages; None: as much as they take."""

    disk_bytes: int
    rows_per_token: int
    ram_bytes: int | None

    @classmethod
    def of(cls, ngrams: NGramConfig, ram_bytes: int | None) -> TableFit:
        """For the tables of a model."""
        left = None if ram_bytes is None else max(0, ram_bytes)
        return cls(table_bytes(ngrams), len(ngrams.layers) * ngrams.num_heads, left)

    @property
    def disk_share(self) -> float:
        """Of reads, those that go to the disk once the page cache is full, if every row is as likely."""
        return 0.0 if self.ram_bytes is None else max(0.0, 1 - self.ram_bytes / self.disk_bytes)

    @property
    def tokens_per_second(self) -> float | None:
        """That the disk's reads allow in steps of many tokens; None where there are none."""
        reads = self.rows_per_token * self.disk_share
        return NUM_READERS / READ_SECONDS / reads if reads else None

    def __str__(self) -> str:
        size, rows = format_bytes(self.disk_bytes), self.rows_per_token
        text = f"tables of n-grams: {size} on disk, of which a token reads {rows} rows"
        if self.ram_bytes is None:
            return f"{text}; with as much RAM left for the page cache none is read twice"
        left = f"{text}; {format_bytes(self.ram_bytes)} of RAM are left for the page cache"
        rate = self.tokens_per_second
        if rate is None:
            return f"{left}, which has room for all"
        reads = f"{self.disk_share:.0%} of reads go to the disk if every row is as likely"
        wait = f"which takes {READ_SECONDS * 1e6:.0f} us or more of a step and allows {rate:.0f} tok/s at most"
        return f"{left}: {reads}, {wait}, with {NUM_READERS} reads of NVMe at a time"
