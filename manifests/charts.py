"""Where the charts lie, and helm, which renders them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART, MODEL_CHART = ROOT / "charts" / "strata", ROOT / "charts" / "strata-model"


def find_helm() -> str:
    """Helm from PATH, else the one that the local cluster brings along. Exits where there is neither."""
    from tests.cluster.parts import binary

    built = binary("helm")
    found = shutil.which("helm") or (str(built) if built.exists() else None)
    if found is None:
        sys.exit("helm is neither on PATH nor built; `python3 -m tests.cluster build helm` builds it")
    return found
