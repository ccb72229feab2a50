"""Shapes of public models by name: the ``config.json`` of each, as its publisher wrote it (keys that nobody reads are
left out)."""

from __future__ import annotations

import os
from pathlib import Path

SHAPES: dict[str, Path] = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.json"))}


def find_shape(text: str) -> Path | None:
    """The config.json of the shape called ``text``; None where there is none. A path that exists is no shape's name."""
    return None if os.path.lexists(text) else SHAPES.get(text)
