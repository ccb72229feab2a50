"""A directory that appears whole or not at all, whoever else makes it at the same time.

It is made in ``.NAME.partial`` beside its final place and renamed at the end. ``.NAME.lock`` is held meanwhile: a
second maker waits, a killed one lets go of it, and what that one had finished is taken over by the next.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strata.errors import CheckpointError, StorageError, UsageError
from strata.store.directories import expanded
from strata.store.journal import Journal

logger = logging.getLogger(__name__)

PARTIAL = ".partial"  # ending of a directory in the making, and of what a killed maker left
_POLL_SECONDS = 0.2  # between two looks at a lock that another process holds


def target_at(path: Path | str) -> Path:
    """The absolute path of a directory to make. Raises UsageError for the root, OptionError for an unknown home."""
    target = expanded(path).absolute()
    if not target.name:
        raise UsageError(f"{target} is the root directory; give another directory")
    return target


@contextmanager
def lock(target: Path, waiting: Callable[[int], None] = lambda num_bytes: None) -> Iterator[None]:
    """Hold the lock of ``target``; waits for another holder. Raises StorageError where no file can be made.

    waiting: called again and again meanwhile, with the bytes that the other has made so far.
    """
    path = target.with_name(f".{target.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _acquire(descriptor, target, waiting)
            while not _is_still(path, descriptor):
                os.close(descriptor)  # the holder before us removed the file; lock the one that others see
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                _acquire(descriptor, target, waiting)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _cannot_write(target.parent, error) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def partial(target: Path, identity: str) -> Iterator[tuple[Path, Journal]]:
    """A directory that becomes ``target`` when the block ends well, and the journal of what is finished in it.

    identity: whatever decides the content. What a maker with the same identity had finished is there again; anything
    else is removed first. When the block ends with a fault of the source, or before anything was finished, nothing
    stays behind. Call with the lock held. Raises UsageError unless ``target`` does not exist, or is an empty directory.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        what = "a symbolic link" if target.is_symlink() else "no directory"
        raise UsageError(f"{target} is {what}; give another directory, or remove it")
    if target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} exists and is not empty; give another directory, or remove it")
    path = _partial_path(target)
    directory = path / "content"
    try:
        journal = Journal(path / "journal")
        if journal.identity != identity:
            discard(target)
            path.mkdir()
            journal.begin(identity)
        directory.mkdir(exist_ok=True)
        try:
            yield directory, journal
            _to_disk(directory)
            directory.rename(target)
        except BaseException as error:
            if isinstance(error, CheckpointError) or not journal.shards:
                shutil.rmtree(path, ignore_errors=True)
                if isinstance(error, KeyboardInterrupt):
                    logger.warning("no file of %s is finished yet; the same command begins anew", target)
            else:
                logger.warning("what is finished stays in %s; the same command goes on from there", path)
            raise
        discard(target)
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(path):
            # The block reads the source while it writes the target.
            raise CheckpointError(f"cannot read {error.filename}: {error.strerror}") from error
        raise _cannot_write(target, error) from error


def discard(target: Path) -> None:
    """Remove what makers of ``target`` left. Call with the lock held."""
    path = _partial_path(target)
    if path.exists():
        shutil.rmtree(path)


def discard_abandoned(target: Path) -> None:
    """Remove what makers of ``target`` left, unless one is at work."""

    def give_up(_: int) -> None:
        raise _HeldError

    with suppress(_HeldError), lock(target, give_up):
        discard(target)


class _HeldError(Exception):
    """Another process holds the lock."""


def _partial_path(target: Path) -> Path:
    return target.with_name(f".{target.name}{PARTIAL}")


def _acquire(descriptor: int, target: Path, waiting: Callable[[int], None]) -> None:
    said = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said:
                logger.info("waiting for another process that makes %s", target)
            said = True
            waiting(_bytes_in(_partial_path(target)))
            time.sleep(_POLL_SECONDS)
        else:
            return


def _bytes_in(directory: Path) -> int:
    total = 0
    for folder, _, files in os.walk(directory):  # passes over folders that their maker has just moved away
        for file in files:
            with suppress(FileNotFoundError):
                total += Path(folder, file).stat().st_size
    return total


def _cannot_write(path: Path, error: OSError) -> StorageError:
    reason = "a file is in the way" if isinstance(error, FileExistsError) else error.strerror or error
    return StorageError(f"cannot write {path}: {reason}")


def _to_disk(directory: Path) -> None:
    """Wait until all files are on the disk: after a power cut, a directory that has its name is whole."""
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
