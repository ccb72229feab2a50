"""A checkout for what pages tell to run there."""

from __future__ import annotations

import shutil
from pathlib import Path

from docs.site import ROOT


def make_checkout(folder: Path) -> Path:
    """Its files are this one's, but for copies of manifests/, which pages tell to change."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name != "manifests":
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "manifests", folder / "manifests")
    return folder
