"""What the cache of converted models holds for nobody any more: stores that no process has started from for long."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from strata.errors import OptionError
from strata.plan.units import format_bytes
from strata.store.convert import is_store
from strata.store.lease import remove

logger = logging.getLogger(__name__)

KEEP_DAYS = "STRATA_CACHE_KEEP_DAYS"
_DAY_SECONDS = 86_400
_MARK = "config.json"  # its time of change is when a process last started from the store


def keep_days() -> int | None:
    """Days that stores stay without use, by $STRATA_CACHE_KEEP_DAYS; None: for ever. Raises OptionError."""
    text = os.environ.get(KEEP_DAYS, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 36_500):
        raise OptionError(
            f"{KEEP_DAYS} is {text!r}; it must be a number of days from 1 to 36500: correct it or unset it"
        )
    return int(text)


def mark_used(store: Path) -> None:
    """A process starts from it."""
    with suppress(OSError):  # one that may not write here does not remove here either
        os.utime(store / _MARK)


def remove_unused(cache: Path, days: int) -> None:
    """Remove the stores that nobody has started from for so many days, and that no process has open.

    What cannot be removed is said in the log, no more: another start tries again.
    """
    oldest = time.time() - days * _DAY_SECONDS
    for path in sorted(cache.iterdir()):
        try:
            if path.is_symlink() or not is_store(path) or (path / _MARK).stat().st_mtime >= oldest:
                continue
            size = sum(one.stat().st_size for one in path.iterdir() if one.is_file())
            if remove(path):
                logger.info("removed %s (%s): not used for more than %d days", path, format_bytes(size), days)
        except OSError as error:
            logger.warning("cannot remove %s, which nobody uses: %s", path, error.strerror or error)
    for path in cache.iterdir():
        if path.is_symlink() and not path.exists():  # the name on the Hub of a store that is gone
            with suppress(OSError):
                path.unlink()
