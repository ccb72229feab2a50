"""Where the `strata` command begins: importing what it needs takes a while, and Ctrl-C then is no fault either."""

from __future__ import annotations


def main() -> int:
    """As ``strata.cli.main.main``, with 130 for an interrupted import."""
    try:
        from strata.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
