"""What the cache of converted models holds for nobody: stores of what a source was before it changed."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from strata.store.convert import is_store
from strata.store.lease import REMOVED, remove
from strata.store.target import PARTIAL, discard_abandoned

logger = logging.getLogger(__name__)


def remove_superseded(store: Path, prefix: str) -> None:
    """Remove the stores beside ``store`` whose names begin with ``prefix``, as those of one source and dtype do.

    One that a link points to (another name on the Hub) or that a process has open stays. What cannot be removed is
    said in the log, no more: the new store is there.
    """
    beside = [path for path in store.parent.iterdir() if path != store and path.name.lstrip(".").startswith(prefix)]
    linked = {path.resolve().name for path in store.parent.iterdir() if path.is_symlink()}
    for path in beside:
        try:
            if path.name.endswith(REMOVED):
                shutil.rmtree(path)
            elif path.name.endswith(PARTIAL):
                discard_abandoned(path.with_name(path.name[1:].removesuffix(PARTIAL)))
            elif not path.is_symlink() and path.name not in linked and is_store(path):
                if remove(path):
                    logger.info("removed %s: what it was made from has changed, and %s is there now", path, store)
                else:
                    logger.info("%s is out of date, but a process has it open; it stays", path)
        except OSError as error:
            logger.warning("cannot remove %s, which is out of date: %s", path, error.strerror or error)
