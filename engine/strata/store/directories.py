"""Where this machine keeps what was converted or fetched once."""

from __future__ import annotations

import os
from pathlib import Path

from strata.errors import OptionError


def default_cache_dir() -> Path:
    """$STRATA_CACHE_DIR, else $XDG_CACHE_HOME/strata/stores, else ~/.cache/strata/stores."""
    if os.environ.get("STRATA_CACHE_DIR"):
        return expanded(os.environ["STRATA_CACHE_DIR"])
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(base) / "strata" / "stores"


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest directory above it: what has the room for it before anything is written there.
    What a locked directory holds is not there."""
    return next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110  that of pathlib raises


def expanded(path: Path | str) -> Path:
    """With ``~`` as the home directory it stands for. Raises OptionError where that is not known."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise OptionError(
            f"{str(path)!r}: the home directory is not known; give the whole path, or set HOME (for the cache: or "
            "STRATA_CACHE_DIR)"
        ) from error
