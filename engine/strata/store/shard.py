"""The files of a store's weights: written piece by piece, read in one pass that also takes the checksum.

``shared/``: safetensors. The library wants all tensors of a file in memory at once. Here their sizes are known before
the first one is made, so the header goes first and each tensor follows; any safetensors reader can open the result.
``experts/``: blobs, one behind the other. ``tables/``: pages, one behind the other.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from strata.errors import CheckpointError
from strata.quant.base import Part, Tensor
from strata.store.layout import part_bytes
from strata.store.manifest import Shard
from strata.store.pieces import read_pieces

_ALIGNMENT = 64  # of the first tensor; the format asks for 8
PIECE_BYTES = 16 << 20  # read or written between two progress reports
_ENTRY_BYTES = 128  # bound of a header entry beside its name

Count = Callable[[int], None]  # told the bytes of each piece


@dataclass(frozen=True, slots=True)
class Hole:
    """Zeros that take no room on the disk."""

    num_bytes: int


def header_bound(names: Mapping[str, Part]) -> int:
    """Bytes that the entries of these tensors take in a header, at most."""
    return sum(len(json.dumps(name)) + _ENTRY_BYTES + 20 * len(part.shape) for name, part in names.items())


def encode_header(tensors: Mapping[str, Part]) -> bytes:
    """Length, JSON and padding: everything before the first tensor."""
    entries: dict[str, Any] = {}
    offset = 0
    for name, part in tensors.items():
        end = offset + part_bytes(part)
        entries[name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def write_shard(
    root: Path, file: str, pieces: Iterable[bytes | memoryview | Hole], wrote: Count = lambda num_bytes: None
) -> Shard:
    """Write one shard of ``pieces``; see ``ShardWriter``."""
    with ShardWriter(root, file, wrote) as writer:
        for piece in pieces:
            writer.write(piece)
        return writer.close()


class ShardWriter:
    """Writes one shard; a file of that name is written over. ``close`` describes it once it is on the disk."""

    def __init__(self, root: Path, file: str, wrote: Count) -> None:
        from xxhash import xxh3_128

        self._file = file
        self._wrote = wrote
        self._hash: Any = xxh3_128()
        self.bytes = 0
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        self._stream: BinaryIO = (root / file).open("wb")

    def write(self, data: bytes | memoryview | Hole) -> None:
        """Append bytes."""
        if isinstance(data, Hole):
            self._skip(data.num_bytes)
            return
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            self._stream.write(piece)
            self._hash.update(piece)
            self.bytes += len(piece)
            self._wrote(len(piece))

    def _skip(self, num_bytes: int) -> None:
        self.bytes += num_bytes
        self._stream.flush()
        self._stream.truncate(self.bytes)
        self._stream.seek(self.bytes)
        zeros = memoryview(bytes(min(num_bytes, PIECE_BYTES)))
        for start in range(0, num_bytes, PIECE_BYTES):
            piece = zeros[: num_bytes - start]
            self._hash.update(piece)
            self._wrote(len(piece))

    def close(self) -> Shard:
        """Wait until the file is on the disk. It also leaves the page cache, so that reading it back reads the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        os.posix_fadvise(self._stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._stream.close()
        return Shard(self._file, self.bytes, self._hash.hexdigest())

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stream.close()


class _ShardReader:
    """One pass over a shard: every read must find its bytes, and ``end`` compares the checksum."""

    def __init__(self, root: Path, shard: Shard, piece_bytes: int, read: Count, *, past_cache: bool = True) -> None:
        from xxhash import xxh3_128

        self._root = root
        self._shard = shard
        self._pieces = read_pieces(root / shard.file, piece_bytes, past_cache=past_cache)
        self._read = read
        self._hash: Any = xxh3_128()
        self._left = memoryview(b"")  # of the last piece

    def piece(self) -> memoryview:
        """The next ``piece_bytes``; fewer at the end of the file. Overwritten by the next piece."""
        piece = next(self._pieces, memoryview(b""))
        self._hash.update(piece)
        self._read(len(piece))
        return piece

    def fill(self, view: memoryview, what: str) -> None:
        """Read into memory. ``what`` is read, for the error."""
        at = 0
        while at < len(view):
            self._left = self._left or self.piece()
            if not self._left:
                raise altered(self._root, self._shard.file, f"it ends inside {what}")
            size = min(len(view) - at, len(self._left))
            copy_bytes(view[at : at + size], self._left[:size])
            self._left = self._left[size:]
            at += size

    def end(self) -> None:
        """After the last byte that is expected."""
        if self._left or self.piece():
            raise altered(self._root, self._shard.file, "it goes on after the last tensor")
        checksum, written = self._hash.hexdigest(), self._shard.xxh3_128
        if checksum != written:
            raise altered(self._root, self._shard.file, f"its checksum is {checksum}, written was {written}")


def read_shared(root: Path, shard: Shard, tensors: Mapping[str, Part], read: Count) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors shard on the CPU, in order; the checksum is compared after the last one.

    Raises CheckpointError naming the file when it is missing, truncated, altered or not what the manifest says.
    """
    import torch

    with _reading(root / shard.file):
        reader = _ShardReader(root, shard, PIECE_BYTES, read)
        header = encode_header(tensors)
        found = bytearray(len(header))
        reader.fill(memoryview(found), "its header")
        if _parsed(bytes(found)) != _parsed(header):
            raise altered(root, shard.file, "its header is not that of the store's config.json")
        for name, part in tensors.items():
            tensor = torch.empty(part.shape, dtype=torch_dtype(part.dtype))
            reader.fill(bytes_of(tensor), f"tensor {name!r}")
            yield name, tensor
        reader.end()


def read_blobs(root: Path, shard: Shard, count: int, blob_bytes: int, read: Count) -> Iterator[Tensor]:
    """The blobs of a shard of experts as uint8 tensors on the CPU, in order, each in the place of the one before it;
    otherwise as ``read_shared``."""
    import torch

    with _reading(root / shard.file):
        reader = _ShardReader(root, shard, blob_bytes, read)
        for index in range(count):
            piece = reader.piece()
            if len(piece) != blob_bytes:
                raise altered(root, shard.file, f"it ends inside expert {index + 1} of {count}")
            yield torch.frombuffer(piece, dtype=torch.uint8)
        reader.end()


def verify(root: Path, shard: Shard, read: Count) -> None:
    """Read a whole shard and compare its checksum; raises CheckpointError naming it. The page cache has it afterwards,
    for whoever loads it next."""
    with _reading(root / shard.file):
        reader = _ShardReader(root, shard, PIECE_BYTES, read, past_cache=False)
        while reader.piece():
            pass
        reader.end()


def altered(root: Path, file: str, what: str) -> CheckpointError:
    """The error for a file of a store that is not as it was written."""
    return CheckpointError(
        f"{root / file}: {what}. The store is damaged; convert the model again, "
        f"and before that remove {root} if nothing but the store is in it"
    )


def torch_dtype(name: str) -> Any:
    """The torch type of a safetensors type name."""
    import torch

    return {
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I8": torch.int8,
        "U8": torch.uint8,
    }[name]


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, writable."""
    import torch

    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


def copied(tensor: Tensor) -> Tensor:
    """A CPU tensor in memory of its own."""
    import torch

    result = torch.empty_like(tensor)
    copy_bytes(bytes_of(result), bytes_of(tensor))
    return result


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Without the interpreter's lock, and on this thread alone: when files are loaded, others copy as well."""
    import numpy

    numpy.copyto(numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(source, numpy.uint8))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _parsed(header: bytes) -> Any:
    """The header's JSON, or the bytes themselves when they are none."""
    try:
        return json.loads(header[8:])
    except (ValueError, RecursionError):
        return header
