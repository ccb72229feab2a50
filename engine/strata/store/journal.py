"""Which shards of a store in the making are whole, so that a conversion that was cut short goes on where it was."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from strata.store.manifest import Shard


class Journal:
    """A file with a line for the conversion and one for each shard that is on the disk.

    A shard's line is written after the shard, and a line that a crash tore counts for nothing: whatever is listed was
    whole once, and is verified at the end as all others are.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.identity: str | None = None  # of the conversion; None where there is no journal
        self.shards: dict[str, Shard] = {}  # by file
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return
        for line in lines:
            try:
                table = json.loads(line)
                if "identity" in table:
                    self.identity = table["identity"]
                else:
                    shard = Shard(**table)
                    self.shards[shard.file] = shard
            except (ValueError, TypeError):
                continue  # torn

    def begin(self, identity: str) -> None:
        """Start anew."""
        self._path.unlink(missing_ok=True)
        self.identity, self.shards = identity, {}
        self._append({"identity": identity})

    def add(self, shard: Shard) -> None:
        """Note a shard that is on the disk."""
        self.shards[shard.file] = shard
        self._append(asdict(shard))

    def finished(self, root: Path, file: str) -> Shard | None:
        """The shard, if it is noted and its file still has its size."""
        shard = self.shards.get(file)
        try:
            return shard if shard is not None and (root / file).stat().st_size == shard.bytes else None
        except OSError:
            return None

    def _append(self, table: dict[str, object]) -> None:
        # A line that was torn has no end: the new one starts on a line of its own, or it would be lost with it.
        with self._path.open("a+b") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, end - 1))
            torn = stream.read(1) not in (b"", b"\n")
            stream.write(b"\n" * torn + json.dumps(table).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
