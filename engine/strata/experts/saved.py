"""Times of trials, kept for the next start: one file for each machine and shape of experts."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from strata.experts.times import Times
from strata.store.directories import default_cache_dir

logger = logging.getLogger(__name__)

_VERSION = 1  # of the file; and of what is timed: a change that makes steps faster makes old times wrong
Facts: TypeAlias = Mapping[str, str | int]


class SavedTimes:
    """Files in ``directory``; a file that is damaged, or of something else, is as good as none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, facts: Facts) -> Path:
        """Where times are that were taken with these facts of the machine and the experts."""
        told = json.dumps(dict(sorted(facts.items())))
        return self._directory / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"

    def read(self, facts: Facts) -> Times:
        """None are there: empty."""
        path = self.path(facts)
        try:
            return _times(json.loads(path.read_text()), facts)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("%s is not used, its times are taken anew: %s", path, error)
            return {}

    def write(self, facts: Facts, times: Times) -> Path | None:
        """The file; None, and a line in the log, where it cannot be written."""
        path = self.path(facts)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        content = {"version": _VERSION, "facts": dict(facts), "seconds_a_layer": times}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(content, indent=1) + "\n")
            new.replace(path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            logger.warning("the times of this trial are not kept for the next start: %s", error)
            return None
        return path


def times_of_this_machine() -> SavedTimes:
    """Where every start looks."""
    return SavedTimes(default_cache_dir() / "calibration")


def _times(content: Any, facts: Facts) -> Times:
    """Raises ValueError with what is wrong."""
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise ValueError("it is of another version of Strata")
    if content.get("facts") != facts:
        raise ValueError("it is of another machine or model")
    times = content.get("seconds_a_layer")
    if not isinstance(times, dict) or not all(isinstance(found, dict) for found in times.values()):
        raise ValueError("it is damaged")
    read = {int(missing): {int(k): _seconds(took) for k, took in found.items()} for missing, found in times.items()}
    if not all(0 <= fetched <= missing for missing, found in read.items() for fetched in found):
        raise ValueError("it is damaged: more experts are fetched than are missing")
    return read


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value < 60:
        raise ValueError(f"it is damaged: a layer takes {value!r} s")
    return float(value)
