"""The GGUF container: what is read, and that no damage ends in anything but a CheckpointError."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from strata.errors import CheckpointError, StrataError, UnsupportedModelError
from strata.store.sources.gguf import GGUFSource
from strata.store.sources.gguf_file import GGUFFile
from tests.store.checkpoints import TOKENS, write_gguf


def every_kind_of_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("t.uint8", 200)
    writer.add_int8("t.int8", -100)
    writer.add_uint16("t.uint16", 60_000)
    writer.add_int16("t.int16", -30_000)
    writer.add_uint32("t.uint32", 4_000_000_000)
    writer.add_int32("t.int32", -2_000_000_000)
    writer.add_uint64("t.uint64", 1 << 63)
    writer.add_int64("t.int64", -(1 << 62))
    writer.add_float32("t.float32", 0.5)
    writer.add_float64("t.float64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "naïve ✓")
    writer.add_array("t.floats", [0.5, -1.5])
    writer.add_array("t.bools", [True, False])


def test_reads_every_kind_of_metadata(tmp_path: Path) -> None:
    metadata = GGUFFile(write_gguf(tmp_path / "m.gguf", edit=every_kind_of_metadata)).metadata
    assert {key: value for key, value in metadata.items() if key.startswith("t.")} == {
        "t.uint8": 200,
        "t.int8": -100,
        "t.uint16": 60_000,
        "t.int16": -30_000,
        "t.uint32": 4_000_000_000,
        "t.int32": -2_000_000_000,
        "t.uint64": 1 << 63,
        "t.int64": -(1 << 62),
        "t.float32": 0.5,
        "t.float64": 0.1,
        "t.bool": True,
        "t.string": "naïve ✓",
        "t.floats": [0.5, -1.5],
        "t.bools": [True, False],
    }
    assert metadata["tokenizer.ggml.tokens"] == TOKENS


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_finds_tensors_where_the_library_does(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", kind=kind)
    ours = GGUFFile(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(ours.tensors) == set(theirs)
    for name, info in ours.tensors.items():
        assert info.type == theirs[name].tensor_type.name
        assert list(info.shape) == theirs[name].shape.tolist()[::-1]
        assert np.array_equal(np.frombuffer(ours.read(info), np.uint8), theirs[name].data.view(np.uint8).ravel())


def test_a_truncated_file_is_named_wherever_it_ends(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    ends = {4, 8, 12, 23, 24, 30, len(whole) // 2, len(whole) - 1, *range(40, len(whole), len(whole) // 200)}
    for end in sorted(ends):
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError, match=r"cut\.gguf is truncated: .*Fetch the file again"):
            GGUFFile(path)


def test_the_truncated_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    last = max(GGUFFile(path).tensors.items(), key=lambda item: item[1].offset)
    path.write_bytes(path.read_bytes()[: last[1].offset + 1])
    with pytest.raises(CheckpointError, match=f"tensor '{last[0]}' ends at byte"):
        GGUFFile(path)


def test_a_damaged_header_ends_in_no_library_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    whole = path.read_bytes()
    start = min(info.offset for info in GGUFFile(path).tensors.values())
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(start)] = draw.choice([0, 1, 127, 255, draw.randrange(256)])
        path.write_bytes(damaged)
        try:
            source = GGUFSource(path)
            (tmp_path / "out").mkdir(exist_ok=True)
            source.write_tokenizer(tmp_path / "out")
        except StrataError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("count", [1 << 20, 1 << 62])
def test_an_array_that_claims_too_much_is_refused_at_once(tmp_path: Path, count: int) -> None:
    path = tmp_path / "m.gguf"
    key = b"a.b"
    for item in (0, 8):  # bytes, strings
        header = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", len(key)) + key
        path.write_bytes(header + struct.pack("<IIQ", 9, item, count))
        with pytest.raises(CheckpointError, match=r"truncated: the metadata 'a\.b' goes beyond"):
            GGUFFile(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not start with 'GGUF'"),
        (b"PK\x03\x04" + bytes(100), "does not start with 'GGUF'"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "GGUF version 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "GGUF version 50331648"),  # big-endian
        (struct.pack("<4sIQQQ3sI", b"GGUF", 3, 0, 1, 3, b"a.b", 77), "unknown type 77"),
        (struct.pack("<4sIQQQ3sIIQ", b"GGUF", 3, 0, 1, 3, b"a.b", 9, 9, 1), "array of the unknown type 9"),
        (struct.pack("<4sIQQQ2s", b"GGUF", 3, 0, 1, 2, b"\xff\xfe"), "not UTF-8"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 1, 0, 1, b"x", 9), "tensor 'x' has 9 dimensions"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"x", 1, 32, 999, 0), "unknown ggml type 999"),
        (
            struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"x", 1, 33, 8, 0),
            r"'x' of type Q8_0 has the shape \[33\]",
        ),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"x", 1, 0, 0, 0), r"'x' of type F32 has the shape \[0\]"),
    ],
)
def test_files_that_are_not_sound(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"odd\.gguf.*{message}"):
        GGUFFile(path)


def test_an_old_version_is_unsupported_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 1, 0, 0))
    with pytest.raises(UnsupportedModelError):
        GGUFFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf cannot be read: No such file"):
        GGUFFile(tmp_path / "none.gguf")
