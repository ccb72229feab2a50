"""The GGUF container: metadata and tensor positions of a memory-mapped file.

The gguf library dequantises (``strata.store.sources.gguf``), but its reader is not used: it takes 3.3 s for the header
of SmolLM2-135M against 0.1 s here, loops over whatever length a damaged file claims, and reports a truncated file as a
numpy error without a name.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 had 32-bit lengths and is long gone
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. ``shape`` is in torch's order (rows first); ``type`` is ggml's name, "Q4_1"."""

    shape: tuple[int, ...]
    type: str
    offset: int  # bytes from the start of the file
    num_bytes: int

    def part(self, index: int) -> TensorInfo:
        """One of those that are stacked along the first dimension."""
        num_bytes = self.num_bytes // self.shape[0]
        return TensorInfo(self.shape[1:], self.type, self.offset + index * num_bytes, num_bytes)


def check_magic(path: Path) -> None:
    """Raise CheckpointError naming the file unless it starts as a GGUF file does."""
    try:
        with path.open("rb") as stream:
            if stream.read(len(_MAGIC)) == _MAGIC:
                return
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    raise CheckpointError(f"{path} is not a GGUF file: it does not start with 'GGUF'. No other single file is a model")


class GGUFFile:
    """A mapped GGUF file. Raises CheckpointError naming the file when it is not one, truncated or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_magic(path)
        try:
            with path.open("rb") as stream:
                self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        self._at = len(_MAGIC)
        self._what = "the header"
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise UnsupportedModelError(f"{path} is GGUF version {version}; little-endian versions 2 and 3 are read")
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            self._what = f"the metadata after {next(reversed(self.metadata), 'the header')!r}"
            key = self._string()
            self._what = f"the metadata {key!r}"
            self.metadata[key] = self._value(self._scalar("I"))
        self.tensors = self._tensors(num_tensors)

    def read(self, info: TensorInfo, rows: slice = slice(None)) -> bytearray:
        """A copy of the bytes of a tensor, or of some rows of a matrix (along its first dimension)."""
        first, last, _ = rows.indices(info.shape[0])
        start = info.offset + first * info.num_bytes // info.shape[0]
        end = info.offset + last * info.num_bytes // info.shape[0]
        copy = bytearray(memoryview(self._data)[start:end])
        # What has been read of a mapped file counts as the process's memory until it is told to forget it.
        page = start - start % mmap.PAGESIZE
        self._data.madvise(mmap.MADV_DONTNEED, page, end - page)
        return copy

    def _tensors(self, count: int) -> dict[str, TensorInfo]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        headers: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            self._what = f"the tensor list after {next(reversed(headers), 'the metadata')!r}"
            name = self._string()
            num_dims = self._scalar("I")
            if num_dims > _MAX_DIMS:
                raise self._damaged(f"tensor {name!r} has {num_dims} dimensions")
            dims = tuple(self._scalar("Q") for _ in range(num_dims))
            headers[name] = (dims[::-1], self._scalar("I"), self._scalar("Q"))
        if len(headers) != count:
            raise self._damaged(f"{count} tensors are announced, but only {len(headers)} have names of their own")
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damaged(f"'general.alignment' is {alignment!r}")
        start = self._at + -self._at % alignment
        infos = {}
        for name, (shape, kind, offset) in headers.items():
            try:
                ggml_type = GGMLQuantizationType(kind)
            except ValueError as error:
                raise UnsupportedModelError(f"{self.path}: tensor {name!r} has the unknown ggml type {kind}") from error
            block, block_bytes = GGML_QUANT_SIZES[ggml_type]
            if not shape or min(shape) < 1 or shape[-1] % block:
                raise self._damaged(f"tensor {name!r} of type {ggml_type.name} has the shape {list(shape)}")
            num_bytes = prod(shape) // block * block_bytes
            end = start + offset + num_bytes
            if end > len(self._data):
                raise CheckpointError(
                    f"{self.path} is truncated: tensor {name!r} ends at byte {end}, the file at {len(self._data)}. "
                    "Fetch the file again"
                )
            infos[name] = TensorInfo(shape, ggml_type.name, start + offset, num_bytes)
        return infos

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) != size:
            raise CheckpointError(
                f"{self.path} is truncated: {self._what} goes beyond its end at byte {len(self._data)}. "
                "Fetch the file again"
            )
        self._at += size
        return data

    def _scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _string(self) -> str:
        try:
            return self._take(self._scalar("Q")).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"{self._what} is not UTF-8") from error

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise self._damaged(f"{self._what} has the unknown type {kind}")
        item, count = self._scalar("I"), self._scalar("Q")
        if item in _SCALARS:
            code = _SCALARS[item]
            return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize("<" + code))))
        if item != _STRING:
            raise self._damaged(f"{self._what} is an array of the unknown type {item}")
        return [self._string() for _ in range(count)]  # a count that is too large ends at the end of the file

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {what}. Fetch the file again")
