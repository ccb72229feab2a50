"""The tables of docs/metrics.md, from the exporters' own code."""

from __future__ import annotations

import re

from dashboards.catalogue import EXPORTERS, Metric, metrics

_BEGIN = "<!-- Generated from the {} by `make dashboards`; change it there. -->\n"
_END = "<!-- End of what is generated. -->\n"


def with_tables(page: str) -> str:
    """The page with each exporter's table as it should be. Raises ValueError where it has no place for one."""
    for exporter in EXPORTERS:
        begin = _BEGIN.format(f"{exporter}'s code")
        made = begin + table(metrics()[exporter]) + _END
        place = re.compile(f"{re.escape(begin)}.*?{re.escape(_END)}", re.DOTALL)
        page, count = place.subn(made.replace("\\", r"\\"), page)
        if count != 1:
            raise ValueError(
                f"docs/metrics.md has {count} places that begin with {begin.strip()!r} and end as they should"
            )
    return page


def table(some: tuple[Metric, ...]) -> str:
    """One row for each."""
    rows = [f"| `{one.name}` | {one.type} | {_labels(one)} | {one.help} |" for one in some]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def _labels(metric: Metric) -> str:
    told = []
    for label, values in metric.labels.items():
        told.append(f"`{label}`" + (f": {', '.join(values)}" if values else ""))
    return "; ".join(told)
