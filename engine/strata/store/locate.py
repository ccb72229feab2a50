"""From what the user names as the model to a store that can be loaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from strata import quant
from strata.config.model_name import HubName, UrlName, parse_name
from strata.errors import StorageError
from strata.store.convert import convert, is_current_store, is_store
from strata.store.directories import default_cache_dir, expanded
from strata.store.manifest import FORMAT_VERSION
from strata.store.progress import Phases, silent
from strata.store.sources import check_files, obtain, source_path
from strata.store.sources.hub_cache import endpoint
from strata.store.superseded import remove_superseded
from strata.store.unused import keep_days, mark_used, remove_unused


def check_source(source: str) -> None:
    """Raise CheckpointError unless what the user names looks like a model, as far as it is here: of what is on the Hub
    or a web server nothing is known yet."""
    name = parse_name(source)
    if isinstance(name, HubName | UrlName):
        return
    path = source_path(name)
    if not is_store(path):
        check_files(path)


def resolve(
    source: str,
    dtype: str,
    cache_dir: Path | str | None = None,
    progress: Phases = silent,
    *,
    refresh: bool = False,
) -> Path:
    """The directory of a store: ``source`` itself when it is one, else its conversion to ``dtype`` in the cache.

    cache_dir: where converted stores are kept; None is ``default_cache_dir()``. A checkpoint is converted once: the
    store's name depends on its files' paths, sizes and times, or on the commit that came from the Hub, on ``dtype``, on
    the store format and on what is recommended for a built-in model. refresh: ask the Hub for a newer commit even where
    there is a store of an older one; otherwise that is taken, without the network. Older stores of the same source and
    dtype are removed unless they are in use (see ``remove_superseded``), and with $STRATA_CACHE_KEEP_DAYS those of
    other sources that nobody has used for so long. Raises what ``convert`` raises.
    """
    quant.target(dtype)
    days = keep_days()
    cache = default_cache_dir() if cache_dir is None else expanded(cache_dir)
    store = _resolve(source, dtype, cache, progress, refresh=refresh)
    if store.parent == cache.resolve() or store.parent == cache:
        mark_used(store)
    if days is not None:
        remove_unused(cache, days)
    return store


def _resolve(source: str, dtype: str, cache: Path, progress: Phases, *, refresh: bool) -> Path:
    name = parse_name(source)
    if isinstance(name, HubName) and not refresh and (known := converted(name, dtype, cache)) is not None:
        return known
    found = obtain(source, progress)
    if is_store(found.path):
        return found.path
    prefix = f"{found.name}-{dtype}-{_digest(found.source)[:8]}-"
    target = cache / f"{prefix}{_digest(FORMAT_VERSION, dtype, found.identity)}"
    try:
        if not is_store(target):
            convert(found, target, dtype, progress=progress, reuse=True)
        if isinstance(name, HubName):
            _point(cache / _latest(name, dtype), target)
        remove_superseded(target, prefix)
    except StorageError as error:
        raise StorageError(
            f"{error}. Converted models are kept in {cache}; set STRATA_CACHE_DIR to a directory with room, or give a "
            "store made by `strata convert`"
        ) from error
    return target


def converted(name: HubName, dtype: str, cache: Path) -> Path | None:
    """The store of what a name on the Hub stood for when it was last asked for; None where there is none."""
    latest = cache / _latest(name, dtype)
    return latest.resolve() if is_current_store(latest) else None


def _latest(name: HubName, dtype: str) -> str:
    """The link to that store."""
    return f"{name.repo.replace('/', '--')}-{dtype}-{_digest(dtype, (endpoint(), str(name)))}"


def _point(link: Path, target: Path) -> None:
    if link.is_symlink() and link.resolve() == target.resolve():
        return
    new = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        new.unlink(missing_ok=True)
        new.symlink_to(target.name)
        new.replace(link)
    except OSError as error:
        raise StorageError(f"cannot write {link}: {error.strerror or error}") from error


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
