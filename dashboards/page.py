"""The table of docs/dashboards.md: which query returns data from real programs without a card, and why not."""

from __future__ import annotations

from dashboards.every import EVERY

_BEGIN = "<!-- Generated from the dashboards by `make dashboards`; a test asks Prometheus each of these. -->\n"
_END = "<!-- End of what is generated. -->\n"


def with_table(page: str) -> str:
    """The page as it should be. Raises ValueError where it has no place for the table."""
    head, begin, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"docs/dashboards.md lacks the lines {_BEGIN.strip()!r} and {_END.strip()!r}")
    rows = []
    for dashboard in EVERY:
        for panel, query in dashboard.queries():
            expr = query.expr.replace("|", "\\|")
            rows.append(f"| {dashboard.title} | {panel.title} | `{expr}` | {query.needs or 'data'} |")
    return "\n".join([head + begin + "| dashboard | panel | query | answer |", "|---|---|---|---|", *rows, end + tail])
