"""Experts that host memory has no room for: a file of tiles, mapped, so that the page cache has what was used last."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

import torch

from strata.errors import StorageError
from strata.plan.units import format_bytes
from strata.store.pieces import read_pieces

_SAMPLE_BYTES = 256 << 20  # read to measure the disk
_PIECE_BYTES = 16 << 20
_MEMORY_FILE_SYSTEMS = (0x01021994, 0x858458F6)  # tmpfs, ramfs


class Spill:
    """``tensor``: uint8 [num_bytes], which begins at a page. It has no name, and goes with the process."""

    def __init__(self, num_bytes: int, directory: Path) -> None:
        """Raises StorageError where ``directory`` cannot be written, has not that much room, or is itself memory."""
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if _is_memory(directory):
                raise StorageError(
                    f"{directory} lies in memory, and host memory has no room for {format_bytes(num_bytes)} of "
                    "experts: let STRATA_CACHE_DIR be on a disk"
                )
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
            # All of it now: a write to the mapping that finds no room ends the process.
            os.posix_fallocate(self._file.fileno(), 0, num_bytes)
        except OSError as error:
            free = shutil.disk_usage(directory).free if directory.is_dir() else 0
            raise StorageError(
                f"{format_bytes(num_bytes, round_up=True)} of experts that host memory has no room for do not fit into "
                f"{directory} ({error.strerror}; {format_bytes(free)} are free). Make room, let STRATA_CACHE_DIR be "
                "on another disk, raise the container's memory limit, or let more experts into VRAM"
            ) from error
        self._map = mmap.mmap(self._file.fileno(), num_bytes)
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    def read_ahead(self, begin: int, num_bytes: int) -> None:
        """Have a part of ``tensor`` read, and do not wait for it."""
        start = begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, begin + num_bytes - start)

    def settle(self) -> float:
        """Once all is written: have it on the disk. Bytes a second at which that gives some of it back."""
        file, size = self._file.fileno(), min(len(self._map), _SAMPLE_BYTES)
        os.fdatasync(file)
        self._map.madvise(mmap.MADV_DONTNEED, 0, size)  # what is mapped does not leave the page cache
        os.posix_fadvise(file, 0, size, os.POSIX_FADV_DONTNEED)
        done, began = 0, time.perf_counter()
        for piece in read_pieces(Path(f"/proc/self/fd/{file}"), _PIECE_BYTES, past_cache=True):
            done += len(piece)
            if done >= size:
                break
        return done / (time.perf_counter() - began)


def _is_memory(directory: Path) -> bool:
    """Whether its files have no disk below them."""
    told = (ctypes.c_long * 32)()  # struct statfs, which begins with the type and is smaller than that
    failed = ctypes.CDLL(None).statfs(os.fsencode(directory), told)
    return not failed and told[0] in _MEMORY_FILE_SYSTEMS
