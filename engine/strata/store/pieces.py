"""A file's bytes in one pass through one buffer, past the page cache where that has little of the file.

Memory that is pinned for experts and the page cache compete for the same control group, and copying out of the cache
costs a core for every few GB/s.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

ALIGNMENT = 4096  # bytes: of memory, offsets and lengths that a disk takes as they are
_CACHED_SHARE = 0.5  # of a file in the page cache, from which on it is read through it


def read_pieces(path: Path, piece_bytes: int, *, past_cache: bool) -> Iterator[memoryview]:
    """The whole file, ``piece_bytes`` at a time, the last piece may be shorter. Each is overwritten by the next one.

    ``piece_bytes``: a multiple of ``ALIGNMENT``. ``past_cache``: with O_DIRECT, unless the page cache has most of the
    file or the file system cannot. Raises OSError.
    """
    assert piece_bytes % ALIGNMENT == 0, f"{piece_bytes} bytes are no multiple of {ALIGNMENT}"
    buffer = memoryview(mmap.mmap(-1, piece_bytes))
    file = os.open(path, os.O_RDONLY)
    try:
        if not (past_cache and cached_share(file) < _CACHED_SHARE and _bypass_cache(file, path)):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        offset = 0
        while size := _fill(file, buffer, offset, path):
            yield buffer[:size]
            offset += size
            if size < piece_bytes:
                return
    finally:
        os.close(file)


def cached_share(file: int) -> float:
    """The share of an open file that the page cache has; 0 where the kernel does not tell."""
    size = os.fstat(file).st_size
    if size == 0:
        return 0.0
    with mmap.mmap(file, size, access=mmap.ACCESS_COPY) as mapped:
        begin = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_char * -(-size // mmap.PAGESIZE))()
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size), pages)
        del begin  # or the mapping cannot be closed
    return 0.0 if failed else pages.raw.count(1) / len(pages)


def _fill(file: int, buffer: memoryview, offset: int, path: Path) -> int:
    """Bytes that were read at ``offset``: fewer than the buffer has at the end of the file."""
    filled = 0
    while filled < len(buffer):
        try:
            size = os.preadv(file, [buffer[filled:]], offset + filled)
        except OSError as error:
            if error.errno != errno.EINVAL or not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
                raise
            fcntl.fcntl(file, fcntl.F_SETFL, 0)
            _tell(path.parent)
            continue
        filled += size
        if size == 0 or filled % ALIGNMENT:  # a disk gives whole blocks, except at the end
            break
    return filled


def _bypass_cache(file: int, path: Path) -> bool:
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _tell(path.parent)
        return False
    return True


@cache
def _tell(directory: Path) -> None:
    """Once for each directory."""
    logger.info("%s cannot be read past the page cache; its files are read through it", directory)
