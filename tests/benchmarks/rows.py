"""From what the commands print to rows of a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30
_READS = (("VRAM", "device"), ("PCIe", "pcie"), ("host memory", "cpu"))


@dataclass(frozen=True, slots=True)
class Row:
    """``figure``: what was measured, for people. Ratios None: there is none. ``problem``: why there is no figure."""

    case: str
    what: str
    figure: str = "-"
    limit_share: float | None = None  # of what rates allow at most, by ``limited_by``
    limited_by: str | None = None
    predicted: float | None = None  # tok/s
    predicted_ratio: float | None = None  # predicted over measured
    moved: str | None = None  # by way
    hit_ratio: float | None = None
    problem: str | None = None


def measured(case: str, printed: str) -> list[Row]:
    """Of ``strata bench decode``, ``prefill`` or ``offload`` with ``--json``: a line each. The last may be torn."""
    return [_measured(case, json.loads(line)) for line in printed.splitlines(keepends=True) if line.endswith("}\n")]


def rates(printed: str) -> str | None:
    """What the first of these lines says of the machine, for people; None where there is none."""
    for line in printed.splitlines(keepends=True):
        if line.endswith("}\n"):
            found = json.loads(line)["rates"]
            memory = ", ".join(f"{name} {found[key] / 1e9:,.0f}" for name, key in _READS)
            return f"read, GB/s: {memory}; products, TFLOP/s: {found['flops'] / 1e12:,.0f}"
    return None


def _measured(case: str, found: dict[str, Any]) -> Row:
    if "batch_size" in found:
        what = f"decode, batch {found['batch_size']}"
        if "way" in found:
            what += f", {found['vram_share']:.0%} of the experts in VRAM, {found['way']}"
        figure = f"{found['tokens_per_second']:,.0f} tok/s"
    else:
        what = f"prompt of {found['prompt_tokens']:,} tokens"
        figure = f"{found['tokens_per_second']:,.0f} tok/s, {1e3 * found['seconds']:,.0f} ms"
    ways = {way: size for way, size in found["moved_bytes"].items() if size}
    return Row(
        case,
        what,
        figure,
        limit_share=found["ratio"],
        limited_by=found["bound_by"],
        predicted=found["expected_tokens_per_second"],
        predicted_ratio=found["expected_ratio"],
        moved=", ".join(f"{way} {size / GIB:.2f}" for way, size in ways.items()),
        hit_ratio=found["hit_ratio"],
    )


def first_token(case: str, prompt_tokens: int, printed: str) -> Row:
    """Of ``strata bench serve --json`` with one stream on an idle server."""
    (level,) = json.loads(printed)["levels"]
    what = f"first of {prompt_tokens} tokens, idle server"
    if level["ttft"] is None:
        return Row(case, what, problem=f"no answer: {level['errors']}")
    percentiles = level["ttft"]["percentiles"]
    return Row(case, what, f"{1e3 * percentiles['50']:.1f} ms, p90 {1e3 * percentiles['90']:.1f}")


def served(case: str, printed: str) -> list[Row]:
    """Of ``strata bench serve --json``: a client's tok/s over those of the engine's steps."""
    rows = []
    for level in json.loads(printed)["levels"]:
        what, engine = f"client of a server, {level['load']}", level["engine"]
        if level["errors"] or engine is None:
            rows.append(Row(case, what, problem=f"errors: {level['errors'] or 'the engine counted nothing'}"))
            continue
        figure = f"{level['tokens_per_second']:,.0f} tok/s, {engine['client_ratio']:.3f} of the engine's"
        rows.append(Row(case, what, figure))
    return rows
