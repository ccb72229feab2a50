"""Writes Grafana's JSON into the chart, to which ``dashboards/generated`` leads, and the tables of two pages about it.

With ``--check`` it says what is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dashboards import page, reference
from dashboards.every import EVERY
from dashboards.grafana import to_json

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "dashboards.md"
GENERATED = ROOT / "charts" / "strata" / "files" / "dashboards"
METRICS = ROOT / "docs" / "metrics.md"


def rendered() -> dict[Path, str]:
    """What every generated file should hold."""
    made = {GENERATED / f"{one.uid}.json": to_json(one) for one in EVERY}
    made[METRICS] = reference.with_tables(METRICS.read_text("utf-8"))
    made[PAGE] = page.with_table(PAGE.read_text("utf-8"))
    return made


def main() -> int:
    """Exit code 1 with ``--check`` where a file differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file is out of date")
    check = parser.parse_args().check
    stale = [path for path, text in rendered().items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered()[path], "utf-8")
        sys.stdout.write(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
