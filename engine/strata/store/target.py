"""A directory that appears whole or not at all, whoever else makes it at the same time.

It is made as ``.NAME.partial`` beside its final place and renamed at the end. ``.NAME.lock`` is held meanwhile: a
second maker waits, a killed one lets go of it, and what that one left is removed by the next.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata.errors import CheckpointError, StorageError

logger = logging.getLogger(__name__)


@contextmanager
def lock(target: Path) -> Iterator[None]:
    """Hold the lock of ``target``; waits for another holder. Raises StorageError where no file can be made."""
    path = target.with_name(f".{target.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that makes %s", target)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                break
            os.close(descriptor)  # the holder before us removed the file; lock the one that others see
    except OSError as error:
        raise _cannot_write(target.parent, error) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def partial(target: Path) -> Iterator[Path]:
    """An empty directory that becomes ``target`` when the block ends well, and is removed when it does not.

    Call with the lock held; ``target`` must not exist, or be an empty directory.
    """
    path = target.with_name(f".{target.name}.partial")
    try:
        if path.exists():
            shutil.rmtree(path)
        path.mkdir()
        try:
            yield path
            _to_disk(path)
            path.rename(target)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(path):
            # The block reads the source while it writes the target.
            raise CheckpointError(f"cannot read {error.filename}: {error.strerror}") from error
        raise _cannot_write(target, error) from error


def _cannot_write(path: Path, error: OSError) -> StorageError:
    reason = "a file is in the way" if isinstance(error, FileExistsError) else error.strerror or error
    return StorageError(f"cannot write {path}: {reason}")


def _to_disk(directory: Path) -> None:
    """Wait until all files are on the disk: after a power cut, a directory that has its name is whole."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
