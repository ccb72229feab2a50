"""The report as a picture: tok/s, time to the first token and between tokens over the load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from strata.bench.serve.summary import Distribution, Level

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(title: str, levels: tuple[Level, ...], path: Path) -> None:
    """Write a PNG. Needs matplotlib. Raises OSError where it cannot be written."""
    from matplotlib.figure import Figure  # no pyplot: it would look for a display

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    speed, ttft, gaps = figure.subplots(1, 3)
    figure.suptitle(title)
    _speed(speed, levels)
    _percentiles(ttft, levels, "time to first token, ms", lambda level: level.ttft)
    _percentiles(gaps, levels, "between tokens, ms", lambda level: level.gaps)
    figure.savefig(path, format="png", dpi=120)


def _speed(axes: Axes, levels: tuple[Level, ...]) -> None:
    places = range(len(levels))
    axes.bar(places, [level.tokens_per_second for level in levels], color="tab:blue", label="client")
    engine = [(place, level.engine.tokens_per_second) for place, level in enumerate(levels) if level.engine]
    if engine:
        axes.plot(*zip(*engine, strict=True), "k_", markersize=16, label="engine")
        axes.legend()
    _name(axes, levels, "tok/s")


def _percentiles(axes: Axes, levels: tuple[Level, ...], title: str, of: Callable[[Level], Distribution | None]) -> None:
    for q in (50, 90, 99):
        points = [(place, 1e3 * values.percentiles[q]) for place, level in enumerate(levels) if (values := of(level))]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=f"p{q}")
    if axes.lines:
        axes.legend()
    _name(axes, levels, title)


def _name(axes: Axes, levels: tuple[Level, ...], title: str) -> None:
    axes.set_title(title)
    axes.set_xticks(range(len(levels)), [level.load for level in levels])
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
