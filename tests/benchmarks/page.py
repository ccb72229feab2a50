"""docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.benchmarks.rows import Row

HEAD = """# Benchmarks

`make bench-gpu` wrote this page: every case in a process of its own, on stores with random weights of public shapes
(`strata bench shape`), whose routers choose all experts alike unless it is said. Behind prompts of 512 tokens each,
greedy.

"""

NOTES = """
Of the limit: the share that was reached of what the card's and the host's rates, measured in the same run, allow at
most for the bytes and products of a step, and the rate that sets it (`strata bench`). Predicted: what the planner
expects of the same rates and hits (`strata plan`, which takes all experts to be as likely). Moved: a step or a prompt,
read from VRAM, brought over PCIe, computed by the CPU's threads in host memory. Hits: the share of the experts needed
that VRAM had.
"""

COLUMNS = ("case", "what", "measured", "of the limit", "predicted", "predicted ÷ measured", "moved, GiB", "hits")


def page(facts: Mapping[str, str], rows: Sequence[Row]) -> str:
    """All of it. ``facts``: of the machine and the run, by name."""
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items()), ""]
    lines += [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *(_line(_cells(row)) for row in rows)]
    return HEAD + "\n".join(lines) + "\n" + NOTES


def _cells(row: Row) -> list[str]:
    if row.problem is not None:
        return [row.case, row.what, f"**{row.problem}**", *["-"] * (len(COLUMNS) - 3)]
    return [
        row.case,
        row.what,
        row.figure,
        "-" if row.limit_share is None else f"{row.limit_share:.2f} ({row.limited_by})",
        "-" if row.predicted is None else f"{row.predicted:,.0f}",
        "-" if row.predicted_ratio is None else f"{row.predicted_ratio:.2f}",
        row.moved or "-",
        "-" if row.hit_ratio is None else f"{row.hit_ratio:.3f}",
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"
