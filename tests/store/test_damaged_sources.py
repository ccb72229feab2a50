"""Whatever is changed in a checkpoint, reading it ends well or in a CheckpointError.

``pytest tests/store/test_damaged_sources.py --hypothesis-profile=long`` tries 100 times as many changes.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.config import read_hf_config
from strata.errors import CheckpointError
from strata.plan.shape import check
from strata.store.sources.base import Source
from strata.store.sources.gguf import GGUFSource
from strata.store.sources.gguf_parts import GGUFParts
from strata.store.sources.safetensors import SafetensorsSource
from tests.store import test_gguf_families, test_schemes


def read_everything(open_: Callable[[Path], Source], path: Path, out: Path) -> bool:
    """Do all that a conversion does; whether it ended well. Any other error than CheckpointError passes."""

    def read_weights() -> None:
        model = read_hf_config(source.config, origin=source.origin)
        shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
        for spec in check(model, shapes, origin=source.origin):
            source.read(spec.name)
            source.read(spec.name, slice(0, 2))

    try:
        source = open_(path)
    except CheckpointError:
        return False
    ended_well = True
    for step in (read_weights, lambda: source.write_tokenizer(out)):
        try:
            step()
        except CheckpointError:
            ended_well = False
    return ended_well


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


# Where (as a share of what is changed), how many bytes go, and what comes in their place.
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=4)


def changed(data: bytes, length: int, changes: list[tuple[float, int, bytes]]) -> bytes:
    """``data`` with changes in its first ``length`` bytes."""
    for share, gone, come in changes:
        at = int(share * length)
        data = data[:at] + come + data[at + gone :]
    return data


class Whole:
    """A sound checkpoint, to be changed. Its bytes are not a field: hypothesis prints the fields of its arguments."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self.start = start  # of a GGUF's tensors
        files = [path] if path.is_file() else list(path.iterdir())
        self.read = {file.name: file.read_bytes() for file in files}.__getitem__


@pytest.fixture(scope="module")
def gguf_file(directory: Path) -> Whole:
    path = test_gguf_families.write(directory / "whole.gguf", "qwen2 moe", kind="Q8_0")
    start = min(info.offset for info in GGUFParts(path).tensors.values())
    assert read_everything(GGUFSource, path, directory)
    return Whole(path, start)


@settings(deadline=None)
@given(changes=CHANGES, end=st.none() | st.floats(0, 1))
def test_bytes_of_a_gguf(
    gguf_file: Whole, directory: Path, changes: list[tuple[float, int, bytes]], end: float | None
) -> None:
    path = directory / "changed.gguf"
    data = changed(gguf_file.read("whole.gguf"), gguf_file.start, changes)
    path.write_bytes(data if end is None else data[: int(end * len(data))])
    read_everything(GGUFSource, path, directory)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-4, 200)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["linear", "yarn", "llama", "gpt2", "gpt-4o", "fp8", "awq", "gptq"])
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)
METADATA = (
    SCALARS.filter(lambda value: value is not None)
    | st.lists(st.text(max_size=5), max_size=4)
    | st.lists(st.floats(), max_size=4)
)


@pytest.fixture(scope="module")
def gguf_files(directory: Path) -> dict[str, Whole]:
    """One for each set of keys."""
    names = {"mixtral": "0.gguf", "qwen2 moe": "1.gguf", "gpt-oss": "2.gguf"}
    return {family: Whole(test_gguf_families.write(directory / name, family)) for family, name in names.items()}


@settings(deadline=None)
@given(data=st.data())
def test_metadata_of_a_gguf(gguf_files: dict[str, Whole], directory: Path, data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(gguf_files)))
    table = dict(GGUFParts(gguf_files[family].path).metadata)
    if family == "mixtral":
        scores = [-float(rank) for rank in range(len(table["tokenizer.ggml.tokens"]))]
        table |= {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.unknown_token_id": 0,
        }
    keys = [*sorted(table), "split.count", "split.no", "gpt-oss.rope.scaling.attn_factor"]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3, unique=True)):
        value = data.draw(METADATA | st.none())
        table.pop(key, None)
        if value is not None:
            table[key] = value
    path = directory / "metadata.gguf"
    path.write_bytes(encode(table))
    read_everything(GGUFSource, path, directory)


def encode(table: dict[str, Any]) -> bytes:
    """A GGUF file that has this metadata, a token embedding, and no other tensor."""
    out = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(table))
    for key, value in table.items():
        out += string(key)
        if isinstance(value, list):
            kind = gguf.GGUFValueType.get_type(value[0]) if value else gguf.GGUFValueType.UINT32
            out += struct.pack("<IIQ", gguf.GGUFValueType.ARRAY, kind, len(value))
            out += b"".join(scalar(kind, item) for item in value)
        else:
            kind = gguf.GGUFValueType.INT64 if type(value) is int else gguf.GGUFValueType.get_type(value)
            out += struct.pack("<I", kind) + scalar(kind, value)
    out += string("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 261, 0, 0)
    return out + b"\0" * (-len(out) % 32 + 64 * 261 * 4)


def string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def scalar(kind: gguf.GGUFValueType, value: Any) -> bytes:
    if kind == gguf.GGUFValueType.STRING:
        return string(value)
    if kind == gguf.GGUFValueType.FLOAT32:
        return struct.pack("<f", max(-3e38, min(3e38, value)))  # NaN passes
    codes = {gguf.GGUFValueType.INT32: "i", gguf.GGUFValueType.INT64: "q", gguf.GGUFValueType.BOOL: "?"}
    return struct.pack("<" + codes.get(kind, "I"), value)


SCHEMES = ["awq", "gptq, act-order", "packed, asymmetric", "fp8, blocks"]


@pytest.fixture(scope="module")
def quantised(directory: Path) -> dict[str, Whole]:
    """By scheme."""
    paths = {name: test_schemes.write(directory / name, test_schemes.CASES[name])[0] for name in SCHEMES}
    for path in paths.values():
        assert read_everything(SafetensorsSource, path, directory)
    return {name: Whole(path) for name, path in paths.items()}


@settings(deadline=None)
@given(scheme=st.sampled_from(SCHEMES), changes=CHANGES, end=st.none() | st.floats(0, 1))
def test_bytes_of_safetensors(
    quantised: dict[str, Whole],
    directory: Path,
    scheme: str,
    changes: list[tuple[float, int, bytes]],
    end: float | None,
) -> None:
    path, file = quantised[scheme].path, "model-1-of-2.safetensors"
    whole = quantised[scheme].read(file)
    data = changed(whole, 8 + struct.unpack("<Q", whole[:8])[0], changes)
    (path / file).write_bytes(data if end is None else data[: int(end * len(data))])
    read_everything(SafetensorsSource, path, directory)
    (path / file).write_bytes(whole)


TABLES = ["config.json", "model.safetensors.index.json", "tokenizer_config.json"]


@settings(deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    file=st.sampled_from(TABLES),
    changes=st.lists(st.tuples(st.floats(0, 1), JSON), min_size=1, max_size=3),
)
def test_tables_of_a_directory(
    quantised: dict[str, Whole], directory: Path, scheme: str, file: str, changes: list[tuple[float, Any]]
) -> None:
    path, whole = quantised[scheme].path, quantised[scheme].read(file)
    table = json.loads(whole)
    for share, value in changes:
        places = list(entries(table))
        inner, key = places[int(share * (len(places) - 1))]
        inner[key] = copy.deepcopy(value)  # a later change may be made in it
    (path / file).write_text(json.dumps(table))
    read_everything(SafetensorsSource, path, directory)
    (path / file).write_bytes(whole)


def entries(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every key of a table and of those in it."""
    for key, value in table.items():
        yield table, key
        if isinstance(value, dict):
            yield from entries(value)
