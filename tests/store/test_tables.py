"""Tables of n-grams in a store: joined from the parts that a checkpoint has, in pages with a checksum each."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from strata.config import ModelConfig, read_hf_config
from strata.errors import CheckpointError
from strata.ngram.stored import open_tables
from strata.plan import shape
from strata.plan.parts import weight_parts
from strata.plan.shape import Role, TensorSpec
from strata.store.convert import convert
from strata.store.encode import encode_pages
from strata.store.reader import Store
from strata.store.shard import Hole, ShardWriter
from strata.store.tables import TableLayout
from tests.ngram.tables import NAME, OneTable, random_rows
from tests.store.checkpoints import config, weights, write_hf

ROWS, DIM = 100_000, 96  # 21 rows a page: three files of 8 MiB at most
PART = NAME.replace(".weight", ".shard_{}.weight")
HASH = NAME.replace("ngram_embedding.weight", "layer_multipliers")


@pytest.fixture(autouse=True)
def a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model needs one."""
    specs = shape._specs

    def with_table(model: ModelConfig) -> Iterator[TensorSpec]:
        yield from specs(model)
        yield TensorSpec(NAME, (ROWS, DIM), Role.NGRAMS)

    monkeypatch.setattr(shape, "_specs", with_table)


def parts(rows: torch.Tensor) -> dict[str, torch.Tensor | None]:
    return {PART.format(number): part.contiguous() for number, part in enumerate(rows.chunk(13))}


def checkpoint(
    directory: Path, rows: torch.Tensor, changes: Mapping[str, torch.Tensor | None] = MappingProxyType({})
) -> Path:
    """A checkpoint with its table in parts, in an order that is not theirs, and with the numbers of the hash."""
    others = {name: weight for name, weight in weights(config()).items() if name != NAME}
    made = write_hf(directory, tensors=others)
    held = dict(reversed((parts(rows) | {HASH: torch.tensor([1, 2, 3])} | dict(changes)).items()))
    save_file({name: part for name, part in held.items() if part is not None}, str(made / "more.safetensors"))
    index = dict.fromkeys(others, "model.safetensors") | {
        name: "more.safetensors" for name, part in held.items() if part is not None
    }
    (made / "model.safetensors").rename(made / "first.safetensors")
    index = {name: file.replace("model.", "first.") for name, file in index.items()}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return made


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    return random_rows(ROWS, DIM)


@pytest.fixture
def store(tmp_path: Path, rows: torch.Tensor) -> Store:
    return Store.open(convert(str(checkpoint(tmp_path / "m", rows)), tmp_path / "s", "int4", shard_size=1 << 20))


def test_a_store_gives_each_row_of_its_source(store: Store, rows: torch.Tensor) -> None:
    (table,) = open_tables(store, torch.device("cpu"), torch.bfloat16).values()
    ids = torch.randint(0, ROWS, (500, 8), generator=torch.Generator().manual_seed(0))
    ids[0, :2] = torch.tensor([0, ROWS - 1])
    assert torch.equal(table.begin(ids).wait(), rows[ids].flatten(1))
    table.close()


def test_a_page_lies_where_the_format_says(store: Store, rows: torch.Tensor) -> None:
    # docs/store-format.md, computed without the reader.
    per_page, pages = (4096 - 8) // (2 * DIM), -(-ROWS // 21)
    files = sorted((store.path / "tables").iterdir())
    assert [file.name for file in files] == [f"1-0000{n}-of-00003.bin" for n in (1, 2, 3)]
    data = b"".join(file.read_bytes() for file in files)
    assert per_page == 21
    assert len(data) == pages * 4096
    for page in (0, 2048, pages - 1):
        held = data[page * 4096 : (page + 1) * 4096]
        first = rows[page * 21 : (page + 1) * 21].reshape(-1).view(torch.uint8).numpy().tobytes()
        assert held[:-8] == first + bytes(4088 - len(first))
        assert int.from_bytes(held[-8:], "little") == xxh3_64_intdigest(held[:-8], seed=page)


def test_tables_are_not_loaded_as_weights(store: Store) -> None:
    seen: list[tuple[int, int]] = []
    assert NAME not in dict(store.load(progress=lambda *now: seen.append(now)))
    shared = sum(shard.bytes for shard in store.manifest.shards if shard.file.startswith("shared/"))
    assert seen[-1] == (shared, shared)
    assert store.num_bytes < shared
    model = read_hf_config(config(), origin="test")
    assert weight_parts(model, "int4").total < 1 << 20


def test_a_table_that_is_one_tensor_gives_the_same(tmp_path: Path, store: Store, rows: torch.Tensor) -> None:
    whole = checkpoint(tmp_path / "whole", rows, dict.fromkeys(parts(rows)) | {NAME: rows})
    one = convert(str(whole), tmp_path / "one", "int4", shard_size=1 << 20)
    for file in (store.path / "tables").iterdir():
        assert (one / "tables" / file.name).read_bytes() == file.read_bytes()


def test_a_conversion_goes_on_with_the_file_at_which_it_was(tmp_path: Path, store: Store, rows: torch.Tensor) -> None:
    def stop(phase: str, done: int, total: int) -> None:
        if phase == "convert" and done > 0.7 * total:
            raise KeyboardInterrupt

    source = str(tmp_path / "m")
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "t", "int4", shard_size=1 << 20, progress=stop)
    left = {file.name: file.stat().st_ino for file in (tmp_path / ".t.partial/content/tables").iterdir()}
    again = convert(source, tmp_path / "t", "int4", shard_size=1 << 20)
    kept = {file.name: file.stat().st_ino for file in (again / "tables").iterdir()}
    assert kept["1-00001-of-00003.bin"] == left["1-00001-of-00003.bin"]
    assert (again / "config.json").read_bytes() == (store.path / "config.json").read_bytes()


def test_few_rows_are_in_memory_at_a_time() -> None:
    source: Any = OneTable(random_rows(ROWS, DIM))
    layout = TableLayout(NAME, 1, ROWS, DIM, 1 << 20)
    assert sum(len(piece) for piece in encode_pages(source, layout, 0)) == layout.num_bytes
    assert source.most <= 21 * 4096


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({PART.format(4): None}, r"shard_4\.weight' is missing", id="a part is missing"),
        pytest.param({PART.format(12): None}, r"wrong shapes: .*ngram_embedding\.weight is", id="the last is missing"),
        pytest.param({NAME: torch.zeros(2, DIM)}, "are both there", id="parts and the whole"),
        pytest.param({PART.format(3): torch.zeros(7693, 95)}, "not rows of one matrix", id="another width"),
        pytest.param({PART.format(3): torch.zeros(7693)}, "not rows of one matrix", id="a vector"),
        pytest.param({PART.format(3): torch.full((7693, DIM), torch.nan)}, "NaN or infinite", id="NaN"),
    ],
)
def test_a_source_that_is_unsound_is_refused(
    tmp_path: Path, rows: torch.Tensor, changes: dict[str, torch.Tensor | None], said: str
) -> None:
    bfloat16 = {name: None if part is None else part.bfloat16() for name, part in changes.items()}
    with pytest.raises(CheckpointError, match=said):
        convert(str(checkpoint(tmp_path / "m", rows, bfloat16)), tmp_path / "s", "int4")
    assert not (tmp_path / "s").exists()


def test_a_file_that_is_missing_or_cut_is_refused(store: Store) -> None:
    file = store.path / "tables" / "1-00002-of-00003.bin"
    data = file.read_bytes()
    file.write_bytes(data[:-4096])
    with pytest.raises(CheckpointError, match=r"1-00002-of-00003\.bin: the shard is truncated"):
        Store.open(store.path)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"1-00002-of-00003\.bin: the shard is missing"):
        Store.open(store.path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tables: tables.clear(), id="none"),
        pytest.param(lambda tables: tables.update(more={"pages_per_shard": 1, "hollow": False}), id="another"),
        pytest.param(lambda tables: tables[NAME].update(pages_per_shard=0), id="no pages"),
        pytest.param(lambda tables: tables[NAME].update(pages_per_shard=7), id="other files"),
        pytest.param(lambda tables: tables[NAME].pop("hollow"), id="a key is missing"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(store: Store, change: Any) -> None:
    path = store.path / "config.json"
    table = json.loads(path.read_text())
    changed = copy.deepcopy(table)
    change(changed["strata"]["tables"])
    path.write_text(json.dumps(changed))
    with pytest.raises(CheckpointError, match="convert the model again"):
        Store.open(store.path)


def test_holes_take_no_room(tmp_path: Path) -> None:
    size = 64 << 20
    with ShardWriter(tmp_path, "hollow", lambda num_bytes: None) as writer:
        writer.write(b"begin")
        writer.write(Hole(size))
        writer.write(b"end")
        shard = writer.close()
    data = (tmp_path / "hollow").read_bytes()
    assert data == b"begin" + bytes(size) + b"end"
    assert shard.bytes == len(data)
    assert shard.xxh3_128 == xxh3_128_hexdigest(data)
    assert (tmp_path / "hollow").stat().st_blocks * 512 < 1 << 20
