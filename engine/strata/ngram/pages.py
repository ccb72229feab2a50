"""Pages of a table's files: from the page cache at once, from the disk many at a time."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xxhash import xxh3_64_intdigest

from strata.errors import CheckpointError
from strata.plan.ngrams import CHECKSUM_BYTES, NUM_READERS
from strata.store.shard import altered
from strata.store.tables import TableLayout

_AT_ONCE = 8  # pages that a reader takes at a time
_CHECKSUM = struct.Struct("<Q")


class Pages:
    """The files of a table in a store, open."""

    def __init__(self, root: Path, layout: TableLayout) -> None:
        """Raises CheckpointError naming a file that is missing or has another size."""
        self.num_read = 0  # pages
        self.num_missed = 0  # of these, not in the page cache; none where the file system does not tell
        self._root, self._layout = root, layout
        self._files: list[int] = []
        self._readers = ThreadPoolExecutor(NUM_READERS, "strata-table-reader")
        self._tells = True  # the file system whether the page cache has a page
        try:
            for index, file in enumerate(layout.files):
                self._open(file, len(layout.pages(index)) * layout.page_bytes)
        except BaseException:
            self.close()
            raise

    def _open(self, file: str, size: int) -> None:
        try:
            self._files.append(os.open(self._root / file, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise altered(self._root, file, f"it cannot be read: {error.strerror}") from error
        found = os.fstat(self._files[-1]).st_size
        if found != size:
            raise altered(self._root, file, f"it has {found} bytes, not {size}")
        os.posix_fadvise(self._files[-1], 0, 0, os.POSIX_FADV_RANDOM)  # no page beside those that are asked for

    def read(self, numbers: Sequence[int], target: memoryview) -> None:
        """Pages by their numbers, one behind the other into ``target``, each compared with its checksum.

        Raises CheckpointError naming the file that cannot be read or is not as it was written.
        """
        size = self._layout.page_bytes
        views = [target[at : at + size] for at in range(0, len(numbers) * size, size)]
        absent = self._take_cached(numbers, views)
        if self._tells:
            self.num_missed += len(absent)

        def fetch_some(begin: int) -> None:
            for number, view in absent[begin : begin + _AT_ONCE]:
                self._fetch(number, view)

        for _ in self._readers.map(fetch_some, range(0, len(absent), _AT_ONCE)):
            pass
        self.num_read += len(numbers)

    def forget(self) -> None:
        """Drop the files from the page cache."""
        for file in self._files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Wait for reads that are under way, and close the files."""
        self._readers.shutdown()
        for file in self._files:
            os.close(file)
        self._files.clear()

    def _take_cached(self, numbers: Sequence[int], views: Sequence[memoryview]) -> list[tuple[int, memoryview]]:
        """Read pages that are known to need no disk; gives the others."""
        if not self._tells:
            return list(zip(numbers, views, strict=True))
        files, pages, size = self._files, self._layout.pages_per_shard, self._layout.page_bytes
        absent = []
        for number, view in zip(numbers, views, strict=True):
            file, page = divmod(number, pages)
            try:
                found = os.preadv(files[file], (view,), page * size, os.RWF_NOWAIT)
            except BlockingIOError:
                found = 0
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise self._unreadable(file, error) from error
                self._tells = False
                return list(zip(numbers, views, strict=True))
            if found == size:
                self._check(number, view)
            else:
                absent.append((number, view))
        return absent

    def _fetch(self, number: int, view: memoryview) -> None:
        """Read a page, whatever it takes."""
        file, page = divmod(number, self._layout.pages_per_shard)
        size, done = len(view), 0
        while done < size:
            try:
                read = os.preadv(self._files[file], (view[done:],), page * size + done)
            except OSError as error:
                raise self._unreadable(file, error) from error
            if read == 0:
                raise altered(self._root, self._layout.files[file], f"it ends inside page {page}")
            done += read
        self._check(number, view)

    def _check(self, number: int, view: memoryview) -> None:
        if self._layout.is_hollow:
            return
        if (
            xxh3_64_intdigest(view[:-CHECKSUM_BYTES], seed=number)
            != _CHECKSUM.unpack_from(view, len(view) - CHECKSUM_BYTES)[0]
        ):
            file, page = divmod(number, self._layout.pages_per_shard)
            raise altered(self._root, self._layout.files[file], f"page {page} is not as its checksum says")

    def _unreadable(self, file: int, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._root / self._layout.files[file]} cannot be read: {error.strerror or error}")
