"""From what the user names as the model to a store that can be loaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from strata import quant
from strata.errors import StorageError
from strata.store.convert import convert, is_store
from strata.store.manifest import FORMAT_VERSION
from strata.store.progress import Phases, silent
from strata.store.sources import obtain


def resolve(source: str, dtype: str, cache_dir: Path | str | None = None, progress: Phases = silent) -> Path:
    """The directory of a store: ``source`` itself when it is one, else its conversion to ``dtype`` in the cache.

    cache_dir: where converted stores are kept; None is ``default_cache_dir()``. A checkpoint is converted once: the
    store's name depends on its files' paths, sizes and times, on ``dtype``, on the store format and on what is
    recommended for a built-in model. Raises what ``convert`` raises.
    """
    quant.target(dtype)
    found = obtain(source)
    if is_store(found.path):
        return found.path
    cache = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    key = hashlib.sha256(repr((FORMAT_VERSION, dtype, found.identity)).encode()).hexdigest()[:16]
    target = cache / f"{found.path.resolve().stem}-{dtype}-{key}"
    if is_store(target):
        return target
    try:
        return convert(source, target, dtype, progress=progress, reuse=True)
    except StorageError as error:
        raise StorageError(
            f"{error}. Converted models are kept in {cache}; set STRATA_CACHE_DIR to a directory with room, or give a "
            "store made by `strata convert`"
        ) from error


def default_cache_dir() -> Path:
    """$STRATA_CACHE_DIR, else $XDG_CACHE_HOME/strata/stores, else ~/.cache/strata/stores."""
    if os.environ.get("STRATA_CACHE_DIR"):
        return Path(os.environ["STRATA_CACHE_DIR"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "strata" / "stores"
