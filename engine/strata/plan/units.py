"""Numbers of bytes for people."""

from __future__ import annotations

import math


def format_bytes(size: int, *, round_up: bool = False, round_down: bool = False) -> str:
    """Binary units, one decimal: "1.5 GiB". ``round_up``: no less than ``size``; ``round_down``: no more."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            break
        value /= 1024
    if round_up or round_down:
        value = (math.ceil if round_up else math.floor)(10 * value) / 10
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
