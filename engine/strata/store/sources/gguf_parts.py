"""A GGUF checkpoint in one file or in several: ``NAME-00001-of-00003.gguf``, any of which may be given.

The first part holds the metadata; each has its own tensors and says in ``split.no`` (from 0), ``split.count`` and
``split.tensors.count`` which part of what it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError
from strata.store.files import is_file
from strata.store.sources.base import WHOLE
from strata.store.sources.gguf_file import GGUFFile, TensorInfo


def part_paths(path: Path) -> list[Path]:
    """Where the parts of a split checkpoint lie, by the name of any; ``path`` alone where it is not named as one."""
    name = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name, re.DOTALL)
    if name is None:
        return [path]
    return [path.with_name(f"{name[1]}-{number:05d}-of-{name[3]}.gguf") for number in range(1, int(name[3]) + 1)]


class GGUFParts:
    """All parts as one file. Raises CheckpointError naming the part that is missing, truncated, damaged or of another
    checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        given = GGUFFile(path)
        count = _split(given, "count", 1)
        files = [given] if count == 1 else _opened(given, count)
        self.metadata: Mapping[str, Any] = files[0].metadata
        self._owners: dict[str, GGUFFile] = {}
        for file in files:
            for name in file.tensors:
                if name in self._owners:
                    raise CheckpointError(f"{file.path}: {self._owners[name].path.name} has tensor {name!r}, too")
                self._owners[name] = file
        announced = _split(files[0], "tensors.count", len(self._owners))
        if announced != len(self._owners):
            raise CheckpointError(
                f"{files[0].path}: {announced} tensors are announced, but its parts hold {len(self._owners)}; "
                "fetch the parts again"
            )
        self.tensors: Mapping[str, TensorInfo] = {name: file.tensors[name] for name, file in self._owners.items()}

    def path_of(self, name: str) -> Path:
        """The part that holds a tensor."""
        return self._owners[name].path

    def read(self, name: str, expert: int | None = None, rows: slice = WHOLE) -> tuple[bytearray, TensorInfo]:
        """A copy of the bytes of a tensor, of one that is stacked along its first dimension only those of ``expert``,
        and of that only ``rows``; and what they are."""
        info = self.tensors[name]
        if expert is not None:
            info = info.part(expert)
        return self._owners[name].read(info, rows), info


def _opened(given: GGUFFile, count: int) -> list[GGUFFile]:
    paths = part_paths(given.path)
    if len(paths) != count:
        raise CheckpointError(
            f"{given.path} is one of the {count} parts of a split GGUF, which are named "
            f"NAME-00001-of-{count:05d}.gguf and so on; give them these names, beside each other"
        )
    missing = [path.name for path in paths if not is_file(path)]
    if missing:
        raise CheckpointError(
            f"{given.path} is one of {count} parts; missing beside it: {', '.join(missing[:8])}. Fetch all parts"
        )
    files = [given if path == given.path else GGUFFile(path) for path in paths]
    for number, file in enumerate(files):
        if (_split(file, "no", 0), _split(file, "count", 1)) != (number, count):
            raise CheckpointError(
                f"{file.path} says that it is part {_split(file, 'no', 0) + 1} of {_split(file, 'count', 1)}, its name "
                f"part {number + 1} of {count}; fetch the parts again"
            )
    return files


def _split(file: GGUFFile, key: str, default: int) -> int:
    value = file.metadata.get(f"split.{key}", default)
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise CheckpointError(f"{file.path}: the metadata 'split.{key}' is {value!r}; one integer is needed")
    return value
