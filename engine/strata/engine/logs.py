"""How the server's and the engine's process write their logs: to standard error, one line per event, no prompts."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(level: int | str) -> None:
    """Set up logging of this process; ``level`` as in the standard library."""
    logging.basicConfig(level=level, format=FORMAT)  # the standard library's default stream is standard error
