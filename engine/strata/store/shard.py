"""The files of a store's weights: written piece by piece, read in one pass that also takes the checksum.

``shared/``: safetensors. The library wants all tensors of a file in memory at once. Here their sizes are known before
the first one is made, so the header goes first and each tensor follows; any safetensors reader can open the result.
``experts/``: blobs, one behind the other.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from strata.errors import CheckpointError
from strata.quant.base import Part, Tensor
from strata.store.layout import part_bytes
from strata.store.manifest import Shard

_ALIGNMENT = 64  # of the first tensor; the format asks for 8
_PIECE_BYTES = 16 << 20  # read or written between two progress reports
_ENTRY_BYTES = 128  # bound of a header entry beside its name

Count = Callable[[int], None]  # told the bytes of each piece


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

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._stream.write(piece)
            self._hash.update(piece)
            self.bytes += len(piece)
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

    def __init__(self, root: Path, shard: Shard, stream: BinaryIO, read: Count) -> None:
        from xxhash import xxh3_128

        self._root = root
        self._shard = shard
        self._stream = stream
        self._read = read
        self._hash: Any = xxh3_128()

    def take(self, size: int) -> bytes:
        """The next bytes; fewer at the end of the file."""
        found = self._stream.read(size)
        self._hash.update(found)
        self._read(len(found))
        return found

    def fill(self, view: memoryview, what: str) -> None:
        """Read into memory. ``what`` is read, for the error."""
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            if self._stream.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                raise altered(self._root, self._shard.file, f"it ends inside {what}")
            self._hash.update(piece)
            self._read(len(piece))

    def end(self) -> None:
        """After the last byte that is expected."""
        if self._stream.read(1):
            raise altered(self._root, self._shard.file, "it goes on after the last tensor")
        checksum, written = self._hash.hexdigest(), self._shard.xxh3_128
        if checksum != written:
            raise altered(self._root, self._shard.file, f"its checksum is {checksum}, written was {written}")


def read_shared(root: Path, shard: Shard, tensors: Mapping[str, Part], read: Count) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors shard on the CPU, in order; the checksum is compared after the last one.

    Raises CheckpointError naming the file when it is missing, truncated, altered or not what the manifest says.
    """
    import torch

    with _reading(root, shard, read) as reader:
        header = encode_header(tensors)
        if _parsed(reader.take(len(header))) != _parsed(header):
            raise altered(root, shard.file, "its header is not that of the store's config.json")
        for name, part in tensors.items():
            tensor = torch.empty(part.shape, dtype=torch_dtype(part.dtype))
            reader.fill(bytes_of(tensor), f"tensor {name!r}")
            yield name, tensor
        reader.end()


def read_blobs(root: Path, shard: Shard, count: int, blob_bytes: int, read: Count) -> Iterator[Tensor]:
    """The blobs of a shard of experts as uint8 tensors on the CPU, in order; otherwise as ``read_shared``."""
    import torch

    with _reading(root, shard, read) as reader:
        for index in range(count):
            blob = torch.empty(blob_bytes, dtype=torch.uint8)
            reader.fill(bytes_of(blob), f"expert {index + 1} of {count}")
            yield blob
        reader.end()


def read_blob(root: Path, shard: Shard, offset: int, blob_bytes: int) -> Tensor:
    """One blob as a uint8 tensor, without a look at the rest of the file; nothing is compared with a checksum."""
    import torch

    blob = torch.empty(blob_bytes, dtype=torch.uint8)
    with _reading(root, shard, lambda num_bytes: None, offset) as reader:
        reader.fill(bytes_of(blob), f"the expert at byte {offset}")
    return blob


def verify(root: Path, shard: Shard, read: Count) -> None:
    """Read a whole shard and compare its checksum; raises CheckpointError naming it."""
    with _reading(root, shard, read) as reader:
        while reader.take(_PIECE_BYTES):
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


@contextmanager
def _reading(root: Path, shard: Shard, read: Count, offset: int = 0) -> Iterator[_ShardReader]:
    path = root / shard.file
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            yield _ShardReader(root, shard, stream, read)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _parsed(header: bytes) -> Any:
    """The header's JSON, or the bytes themselves when they are none."""
    try:
        return json.loads(header[8:])
    except (ValueError, RecursionError):
        return header
