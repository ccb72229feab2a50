"""One safetensors file of a store: written tensor by tensor, read in one pass that also takes the checksum.

The library wants all tensors of a file in memory at once. Here their sizes are known before the first one is made, so
the header goes first and each tensor follows; any safetensors reader can open the result.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from strata.errors import CheckpointError
from strata.quant.base import Part, Tensor
from strata.store.manifest import Shard, part_bytes

_ALIGNMENT = 64  # of the first tensor; the format asks for 8
_PIECE_BYTES = 16 << 20  # read or written between two progress reports
_ENTRY_BYTES = 128  # bound of a header entry beside its name


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
    """Writes the tensors of one shard in the order of ``tensors``; ``shard`` describes the closed file."""

    def __init__(self, root: Path, file: str, tensors: Mapping[str, Part], wrote: Callable[[int], None]) -> None:
        from xxhash import xxh3_128

        self._file = file
        self._expected = iter(tensors.items())
        self._wrote = wrote
        self._hash: Any = xxh3_128()
        self._bytes = 0
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        self._stream: BinaryIO = (root / file).open("xb")
        try:
            self._write(encode_header(tensors))
        except BaseException:
            self._stream.close()
            raise

    def add(self, name: str, tensor: Tensor) -> None:
        """Append the next tensor; its name, type and shape must be those of the header."""
        expected, part = next(self._expected)
        assert name == expected, f"{name} follows where the header has {expected}"
        assert tuple(tensor.shape) == part.shape, f"{name} is {tuple(tensor.shape)}, the header has {part.shape}"
        assert tensor.dtype == torch_dtype(part.dtype), f"{name} is {tensor.dtype}, the header has {part.dtype}"
        before = self._bytes
        self._write(_bytes_of(tensor.cpu().contiguous()))
        assert self._bytes - before == part_bytes(part), f"{name} has another size than its header entry"

    def close(self) -> Shard:
        """Describe the file; every tensor of the header must have been added."""
        assert next(self._expected, None) is None, f"{self._file} is closed before its last tensor"
        self._stream.close()
        return Shard(self._file, self._bytes, self._hash.hexdigest())

    def _write(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._stream.write(piece)
            self._hash.update(piece)
            self._bytes += len(piece)
            self._wrote(len(piece))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stream.close()


def read_shard(
    root: Path, shard: Shard, tensors: Mapping[str, Part], read: Callable[[int], None]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a shard on the CPU, in order; the checksum is compared after the last one.

    Raises CheckpointError naming the file when it is missing, truncated, altered or not what the manifest says.
    """
    import torch
    from xxhash import xxh3_128

    path = root / shard.file
    checksum: Any = xxh3_128()
    try:
        with path.open("rb") as stream:
            header = encode_header(tensors)
            found = stream.read(len(header))
            checksum.update(found)
            read(len(found))
            if _parsed(found) != _parsed(header):
                raise altered(root, shard.file, "its header is not that of the store's config.json")
            for name, part in tensors.items():
                tensor = torch.empty(part.shape, dtype=torch_dtype(part.dtype))
                view = _bytes_of(tensor)
                for start in range(0, len(view), _PIECE_BYTES):
                    piece = view[start : start + _PIECE_BYTES]
                    if stream.readinto(piece) != len(piece):
                        raise altered(root, shard.file, f"it ends inside tensor {name!r}")
                    checksum.update(piece)
                    read(len(piece))
                yield name, tensor
            if stream.read(1):
                raise altered(root, shard.file, "it goes on after the last tensor")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if checksum.hexdigest() != shard.xxh3_128:
        raise altered(root, shard.file, f"its checksum is {checksum.hexdigest()}, written was {shard.xxh3_128}")


def altered(root: Path, file: str, what: str) -> CheckpointError:
    """The error for a file of a store that is not as it was written."""
    return CheckpointError(f"{root / file}: {what}. The store is damaged; delete {root} and convert the model again")


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


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, writable."""
    import torch

    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


def _parsed(header: bytes) -> Any:
    """The header's JSON, or the bytes themselves when they are none."""
    try:
        return json.loads(header[8:])
    except ValueError:
        return header
