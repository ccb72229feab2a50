"""What was read of tables of n-grams."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Since a model was loaded, of one table or of all. Where the file system does not tell what the page cache has,
    all bytes count as read from it."""

    rows: int = 0  # that tokens asked for
    cached_bytes: int = 0  # of the pages that hold them, each once a step: from the page cache
    disk_bytes: int = 0  # and from the disk

    def __add__(self, other: TableCounts) -> TableCounts:
        return TableCounts(
            self.rows + other.rows, self.cached_bytes + other.cached_bytes, self.disk_bytes + other.disk_bytes
        )
