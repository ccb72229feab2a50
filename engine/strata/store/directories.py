"""Where this machine keeps what was converted or fetched once."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """$STRATA_CACHE_DIR, else $XDG_CACHE_HOME/strata/stores, else ~/.cache/strata/stores."""
    if os.environ.get("STRATA_CACHE_DIR"):
        return Path(os.environ["STRATA_CACHE_DIR"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "strata" / "stores"
