"""What the cache holds for nobody any more: stores that no process has started from for long, and downloads from the
Hub that lie beside them."""

from __future__ import annotations

import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR

from strata.errors import OptionError
from strata.plan.units import format_bytes
from strata.store.convert import is_store
from strata.store.lease import REMOVED, is_open, remove

logger = logging.getLogger(__name__)

KEEP_DAYS = "STRATA_CACHE_KEEP_DAYS"
_DAY_SECONDS = 86_400
_MODELS = "models--"  # how the Hub's client names a model's folder
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
    """Remove the stores that nobody has started from for so many days, and that no process has open; and models in a
    cache of the Hub's beside ``cache`` of which no file was read for as long: a start from a store needs none.

    What cannot be removed is said in the log, no more: another start tries again.
    """
    oldest = time.time() - days * _DAY_SECONDS
    try:
        found = sorted([*cache.iterdir(), *_downloads(cache)])
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s cannot be looked through for what nobody uses: %s", cache, error.strerror or error)
        return
    for path in found:
        try:
            if path.name.endswith(REMOVED):
                shutil.rmtree(path)  # by a process that was ended in the middle of it
            elif not path.is_symlink() and _last_used(path) < oldest:
                size = sum(one.lstat().st_size for one in path.rglob("*"))
                if _remove(path):
                    logger.info("removed %s (%s): not used for more than %d days", path, format_bytes(size), days)
        except OSError as error:
            logger.warning("cannot remove %s, which nobody uses: %s", path, error.strerror or error)
    for path in cache.iterdir():
        if path.is_symlink() and not path.exists():  # the name on the Hub of a store that is gone
            with suppress(OSError):
                path.unlink()


def _downloads(cache: Path) -> list[Path]:
    """Models in the Hub's cache, where that is Strata's own: elsewhere other programs keep theirs, too."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return []
    hub = Path(constants.HF_HUB_CACHE)
    if not hub.is_dir() or not hub.resolve().is_relative_to(cache.resolve().parent):
        return []
    return [path for path in hub.iterdir() if path.name.lstrip(".").startswith(_MODELS)]


def _last_used(path: Path) -> float:
    """Seconds since 1970; without end for what is neither a store nor a download."""
    if path.name.startswith(_MODELS):
        # One that is being downloaded has a file that grows.
        facts = [one.lstat() for one in (path, *path.rglob("*"))]
        return max(max(fact.st_mtime, 0 if S_ISDIR(fact.st_mode) else fact.st_atime) for fact in facts)
    return (path / _MARK).stat().st_mtime if is_store(path) else float("inf")


def _remove(path: Path) -> bool:
    """Whether nobody has it open."""
    if not path.name.startswith(_MODELS):
        return remove(path)
    if any(is_open(config.parent) for config in path.glob("snapshots/*/config.json")):
        return False
    gone = path.with_name(f".{path.name}{REMOVED}")
    path.rename(gone)  # at once: no half of it is ever taken for a model
    shutil.rmtree(gone)
    return True
