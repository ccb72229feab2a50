"""What the operator writes to its log: a line for each thing, with what to do."""

from __future__ import annotations

import copy
import logging
import sys
from typing import TextIO

_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"
# Kopf tells of an error where it passes, and raises it to us, who tell what follows from it.
_ECHOES = ("kopf._core.reactor.orchestration", "kopf._core.reactor.running")
_LIBRARIES = ("kopf._", "asyncio", "aiohttp")  # kopf.objects tells of our own handlers' defects


class _Lines(logging.Formatter):
    """A library's traceback, which says nothing to who runs the operator, is its error's name alone."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and record.exc_info[1] is not None and record.name.startswith(_LIBRARIES):
            words = f"{record.getMessage()} ({type(record.exc_info[1]).__name__})"
            record = copy.copy(record)
            record.msg, record.args, record.exc_info, record.exc_text = words, (), None, None
        return super().format(record)


def set_up(level: str) -> None:
    """Of the whole process. At DEBUG everything is told, with tracebacks."""
    is_debug = level == "DEBUG"
    logging.basicConfig(level=level, handlers=[handler(sys.stdout, is_debug=is_debug)])
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    for name in _ECHOES:
        logging.getLogger(name).setLevel(logging.NOTSET if is_debug else logging.CRITICAL)


def handler(stream: TextIO, *, is_debug: bool) -> logging.Handler:
    """Writes records to the stream."""
    made = logging.StreamHandler(stream)
    made.setFormatter(logging.Formatter(_LINE) if is_debug else _Lines(_LINE))
    return made
