"""Opening and loading a store, and every way in which one can be damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata.errors import CheckpointError
from strata.store.convert import convert
from strata.store.reader import Store
from tests.store.checkpoints import config, write_hf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two shards that no test may change."""
    directory = tmp_path_factory.mktemp("whole")
    source = write_hf(directory / "m", config(intermediate_size=8192))
    return convert(str(source), directory / "s", "int4", shard_size=1 << 20)


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(whole, tmp_path / "s"))


def test_sizes_agree(path: Path) -> None:
    store = Store.open(path)
    loaded = dict(store.load())
    held = sum(
        weight.num_bytes if hasattr(weight, "num_bytes") else weight.numel() * weight.element_size()
        for weight in loaded.values()
    )
    assert store.num_bytes == held


def test_loading_reports_the_bytes_of_all_shards(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    for _ in Store.open(path).load(progress=lambda *now: seen.append(now)):
        pass
    total = sum(file.stat().st_size for file in (path / "shared").iterdir())
    assert seen[-1] == (total, total)
    assert [now[0] for now in seen] == sorted(now[0] for now in seen)


def shards(path: Path) -> list[Path]:
    found = sorted((path / "shared").iterdir())
    assert len(found) > 1
    return found


def test_a_truncated_shard_is_named_before_loading(path: Path) -> None:
    shard = shards(path)[1]
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{shard.name}: the shard is truncated: it has {size - 1} bytes"):
        Store.open(path)


def test_a_longer_shard_is_named_before_loading(path: Path) -> None:
    shard = shards(path)[1]
    shard.write_bytes(shard.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match=rf"{shard.name}: the shard is altered"):
        Store.open(path)


def test_a_missing_shard_is_named(path: Path) -> None:
    shard = shards(path)[0]
    shard.unlink()
    with pytest.raises(
        CheckpointError,
        match=rf"{shard.name}: the shard is missing.*convert the model again.*if nothing but the store",
    ):
        Store.open(path)


@pytest.mark.parametrize("place", [0.1, 0.5, 1.0])
def test_one_altered_bit_is_found_by_the_checksum(path: Path, place: float) -> None:
    shard = shards(path)[1]
    data = bytearray(shard.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start + int((len(data) - 1 - start) * place)] ^= 1
    shard.write_bytes(data)
    store = Store.open(path)  # the size is right
    with pytest.raises(CheckpointError, match=rf"{shard.name}: its checksum is [0-9a-f]{{32}}, written was"):
        list(store.load())


@pytest.mark.parametrize("position", [0, 7, 8, 20, 200])
def test_an_altered_header_is_found(path: Path, position: int) -> None:
    shard = shards(path)[1]
    data = bytearray(shard.read_bytes())
    data[position] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{shard.name}: its (header|checksum)"):
        list(Store.open(path).load())


def test_a_shard_cut_while_loading_is_named(path: Path) -> None:
    store = Store.open(path)
    shard = shards(path)[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=rf"{shard.name}: it ends inside tensor"):
        list(store.load())


def test_a_shard_gone_while_loading_is_named(path: Path) -> None:
    store = Store.open(path)
    shard = shards(path)[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name} cannot be read: No such file"):
        list(store.load())


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_tokenizer_file_is_named(path: Path, file: str) -> None:
    (path / file).unlink()
    with pytest.raises(CheckpointError, match=f"s/{file}: the file is missing"):
        Store.open(path)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, (2,), id="none"),
        pytest.param({"eos_token_id": [2, 7]}, (2, 7), id="several, one of them known"),
        pytest.param({"eos_token_id": 9, "top_p": 0.5}, (2, 9), id="one"),
    ],
)
def test_end_tokens_of_both_configurations_count(path: Path, more: dict[str, Any], expected: tuple[int, ...]) -> None:
    (path / "generation_config.json").write_text(json.dumps(more))
    store = Store.open(path)
    assert store.eos_token_ids == expected
    assert store.generation_config == more


@pytest.mark.parametrize("text", ["[", "[]", '{"eos_token_id": "</s>"}', '{"eos_token_id": [1, -1]}'])
def test_a_generation_config_that_is_unsound_is_named(path: Path, text: str) -> None:
    (path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"s/generation_config\.json"):
        Store.open(path)


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a store: it has no config\.json"):
        Store.open(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"m is not a store: its config\.json has no 'strata' table; convert it first"
    ):
        Store.open(write_hf(tmp_path / "m"))


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    table = json.loads((path / "config.json").read_text())
    edit(table)
    (path / "config.json").write_text(json.dumps(table))


WEIGHT = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.update(strata=7), "'strata' is not a table"),
        (lambda t: t["strata"].update(format_version=1), "format version 1; this Strata reads version 2"),
        (lambda t: t["strata"].pop("format_version"), "format version None"),
        (lambda t: t["strata"].pop("shards"), "table is damaged"),
        (lambda t: t["strata"].update(shared=[7]), "table is damaged"),
        (lambda t: t["strata"].pop("experts"), "table is damaged"),
        (lambda t: t["strata"].update(experts=[]), "table is damaged"),
        (lambda t: t["strata"]["shards"][0].update(bytes="many"), "table is damaged"),
        (lambda t: t["strata"]["shards"][0].update(file="../../etc/passwd"), "lists 2 shards that are not the 2"),
        (lambda t: t["strata"]["shards"].pop(), "lists 1 shards that are not the 2"),
        (lambda t: t["strata"]["shared"][0][WEIGHT].update(format="int3"), "has the format 'int3'"),
        (lambda t: t["strata"]["shared"][0][WEIGHT].update(shape=[8192]), r"the shape \[8192\]"),
        (lambda t: t["strata"]["shared"][0][WEIGHT].update(shape=[8192, 0]), r"the shape \[8192, 0\]"),
        (lambda t: t["strata"]["shared"][0][WEIGHT].update(shape=[8192, 50]), r"is \[8192, 50\], needed"),
        (lambda t: t["strata"]["shared"][0][WEIGHT].update(shape=[8192, 32]), r"is \[8192, 32\], needed"),
        (lambda t: t["strata"]["shared"][1].update(t["strata"]["shared"][0]), "a weight lies in two places"),
        (lambda t: t["strata"]["shared"][0].pop(WEIGHT), f"missing tensors: {WEIGHT}"),
        (lambda t: t.update(hidden_size=128), "wrong shapes"),
        (lambda t: t.update(architectures=["X"]), "architecture 'X' is not supported"),
    ],
)
def test_an_altered_config_is_refused(path: Path, edit: Callable[[dict[str, Any]], Any], message: str) -> None:
    change(path, edit)
    with pytest.raises(CheckpointError, match=message):
        Store.open(path)


def test_a_config_whose_formats_are_not_those_of_the_shards(path: Path) -> None:
    change(path, lambda t: t["strata"]["shared"][0][WEIGHT].update(format="int8"))
    store = Store.open(path)
    with pytest.raises(CheckpointError, match=r"its header is not that of the store's config\.json"):
        list(store.load())
