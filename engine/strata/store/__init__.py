"""Checkpoints in, the store format, and reading it back. Importing this package imports neither torch nor numpy."""

from strata.store.locate import resolve
from strata.store.reader import Store

__all__ = ["Store", "resolve"]
