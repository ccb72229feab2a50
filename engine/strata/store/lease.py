"""Which stores are open, so that none is removed from under a process that reads it."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

REMOVED = ".removed"  # ending of a store on its way out: if that is cut short, the rest is no store


class Lease:
    """Keeps others from removing a store, as long as the object lives; the end of the process ends it, too."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):  # what is not there is for the reader to say; a file system without locks has no leases
            self._descriptor = os.open(path / "config.json", os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def is_open(path: Path) -> bool:
    """Whether a process has a lease on the store. Raises OSError where it cannot be asked."""
    descriptor = os.open(path / "config.json", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove(path: Path) -> bool:
    """Remove a store, unless a process has it open: then False. Raises OSError where it cannot be written."""
    gone = path.with_name(f".{path.name}{REMOVED}")
    descriptor = os.open(path / "config.json", os.O_RDWR)  # NFS locks only what is open for writing
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.rename(gone)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    shutil.rmtree(gone)
    return True
