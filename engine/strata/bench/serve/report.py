"""The whole measurement as Markdown, JSON and a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strata.bench.serve.chart import draw
from strata.bench.serve.gpus import GpuSummary
from strata.bench.serve.summary import Distribution, Level
from strata.errors import StorageError

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Report:
    """``settings``: what was asked for. ``notes``: what a reader must know to judge the figures."""

    title: str
    settings: dict[str, str]
    notes: tuple[str, ...]
    levels: tuple[Level, ...]
    ended_by: str | None  # why it ended before its end: INTERRUPTED, or the error

    def as_dict(self) -> dict[str, Any]:
        """Times in seconds, rates in tokens a second."""
        return {
            "title": self.title,
            "settings": self.settings,
            "notes": list(self.notes),
            "ended_by": self.ended_by,
            "levels": [{**asdict(level), "tokens_per_second": level.tokens_per_second} for level in self.levels],
        }

    def markdown(self) -> str:
        """Tables for people."""
        lines = [f"# {self.title}", ""]
        lines += [f"- {name}: {value}" for name, value in self.settings.items()]
        lines += [f"- {note}" for note in self.notes]
        if self.ended_by is not None:
            lines.append(f"- **{self.ended_by}**: this is what had been answered until then")
        lines += ["", *self._speed(), "", *_latency(self.levels)]
        if any(level.gpus for level in self.levels):
            lines += ["", *_gpus(self.levels)]
        if any(level.errors for level in self.levels):
            lines += ["", *_errors(self.levels)]
        return "\n".join(lines) + "\n"

    def _speed(self) -> list[str]:
        has_engine = any(level.engine for level in self.levels)
        head = ["load", "answered", "errors", "seconds", "tok/s"]
        if has_engine:
            head += ["engine tok/s", "client ÷ engine"]
        rows = []
        for level in self.levels:
            row = [
                level.load,
                f"{level.num_answered} of {level.num_requests}",
                str(sum(level.errors.values())),
                f"{level.seconds:.1f}",
                f"{level.tokens_per_second:.1f}",
            ]
            if has_engine:
                view = level.engine
                row += [f"{view.tokens_per_second:.1f}", f"{view.client_ratio:.3f}"] if view else ["-", "-"]
            rows.append(row)
        return _table(head, rows)


def save(report: Report, directory: Path) -> list[Path]:
    """Write report.md, report.json and, where matplotlib is installed, report.png.

    Raises StorageError where it cannot be written.
    """
    written = [directory / "report.md", directory / "report.json"]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written[0].write_text(report.markdown(), "utf-8")
        written[1].write_text(json.dumps(report.as_dict(), indent=1) + "\n", "utf-8")
        if report.levels and has_matplotlib():
            written.append(directory / "report.png")
            draw(report.title, report.levels, written[-1])
    except OSError as error:
        raise StorageError(f"the report cannot be written to {directory}: {error.strerror or error}") from error
    return written


def has_matplotlib() -> bool:
    """Whether a picture can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _latency(levels: tuple[Level, ...]) -> list[str]:
    head = ["load", "TTFT p50 / p90 / p99, ms", "ITL p50 / p90 / p99, ms", "whole answer p50 / p90 / p99, s"]
    rows = [
        [level.load, _three(level.ttft, 1e3), _three(level.gaps, 1e3), _three(level.duration, 1)] for level in levels
    ]
    return _table(head, rows)


def _three(values: Distribution | None, scale: float) -> str:
    if values is None:
        return "-"
    return " / ".join(f"{scale * values.percentiles[q]:.1f}" for q in (50, 90, 99))


def _gpus(levels: tuple[Level, ...]) -> list[str]:
    head = ["load", "card", "max °C", "W mean / max", "SM MHz mean / min", "memory MHz", "busy %", "VRAM GiB"]
    rows = [[level.load, *_gpu(gpu)] for level in levels for gpu in level.gpus]
    return _table(head, rows)


def _gpu(gpu: GpuSummary) -> list[str]:
    def show(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
        return "-" if value is None else f"{value / scale:.{digits}f}"

    return [
        f"{gpu.index} {gpu.name}",
        show(gpu.max_temperature_c),
        f"{show(gpu.mean_power_watts)} / {show(gpu.max_power_watts)}",
        f"{show(gpu.mean_sm_clock_mhz)} / {show(gpu.min_sm_clock_mhz)}",
        show(gpu.mean_memory_clock_mhz),
        show(gpu.mean_utilization_percent),
        show(gpu.max_vram_used_bytes, 1 << 30, 1),
    ]


def _errors(levels: tuple[Level, ...]) -> list[str]:
    rows = [[level.load, str(number), error] for level in levels for error, number in level.errors.items()]
    return _table(["load", "times", "error"], rows)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Markdown; a bar in a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) + " |" for line in lines]
