"""A checkpoint becomes a store, whole or not at all."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from strata import quant
from strata.errors import CheckpointError, OptionError, StorageError, StrataError, UnsupportedModelError, UsageError
from strata.quant import QuantizedTensor
from strata.store.convert import MIN_SHARD_SIZE, convert
from strata.store.reader import Store
from tests.store.checkpoints import config, weights, write_gguf, write_hf


def entries(directory: Path) -> list[str]:
    """Everything in a directory, hidden files too."""
    return sorted(path.name for path in directory.iterdir())


def unpacked(path: Path) -> dict[str, torch.Tensor]:
    return {
        name: quant.get(weight.format).unpack(weight) if isinstance(weight, QuantizedTensor) else weight.float()
        for name, weight in Store.open(path).load()
    }


@pytest.mark.parametrize("kind", ["hf", "gguf"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_a_store_holds_the_weights_of_its_source(tmp_path: Path, dtype: str, tied: bool, kind: str) -> None:
    table = config(tie_word_embeddings=tied)
    source = write_hf(tmp_path / "m", table) if kind == "hf" else write_gguf(tmp_path / "m.gguf", table)
    store = Store.open(convert(str(source), tmp_path / "store", dtype))
    written = weights(table)
    assert store.dtype == dtype
    assert store.model_config.tie_word_embeddings is tied
    assert {name for name, _ in store.load()} == set(written)
    bounds = {"bf16": 0.0, "int8": 0.008, "int4": 0.09}
    for name, found in unpacked(store.path).items():
        is_embedding = "embed" in name or "lm_head" in name
        bound = 0.0 if found.ndim == 1 else bounds["int8" if is_embedding and dtype == "int4" else dtype]
        assert float((found - written[name]).norm() / written[name].norm()) <= bound, name


def test_gguf_and_safetensors_of_one_model_give_the_same_store(tmp_path: Path) -> None:
    stores = [
        Store.open(convert(str(source), tmp_path / f"store{index}", "int4"))
        for index, source in enumerate(
            [
                write_hf(tmp_path / "m", dtype=torch.float32),
                write_hf(tmp_path / "sharded", dtype=torch.float32, shards=4),
                write_gguf(tmp_path / "m.gguf"),
            ]
        )
    ]
    assert len({tuple(shard.xxh3_128 for shard in store.manifest.shards) for store in stores}) == 1
    assert len({repr(store.model_config.rope.theta) + repr(store.model_config.num_heads) for store in stores}) == 1


def test_weights_come_in_the_types_that_are_promised(tmp_path: Path) -> None:
    table = config(intermediate_size=80)  # down_proj's rows of 80 hold no whole groups of 32
    store = Store.open(convert(str(write_hf(tmp_path / "m", table, dtype=torch.float16)), tmp_path / "store", "int4"))
    found = dict(store.load())
    kinds = {
        name: weight.format if isinstance(weight, QuantizedTensor) else weight.dtype for name, weight in found.items()
    }
    assert kinds["model.embed_tokens.weight"] == "int8"
    assert kinds["model.layers.0.mlp.up_proj.weight"] == "int4"
    assert kinds["model.layers.0.mlp.down_proj.weight"] == torch.bfloat16
    assert kinds["model.norm.weight"] == torch.float32  # float16 fits only there


def test_bf16_norms_stay_bf16(tmp_path: Path) -> None:
    store = Store.open(convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "int8"))
    assert dict(store.load())["model.norm.weight"].dtype == torch.bfloat16


def test_any_safetensors_reader_opens_the_shards(tmp_path: Path) -> None:
    path = convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "bf16")
    (shard,) = (path / "shared").iterdir()
    tensors = load_file(str(shard))
    assert set(tensors) == set(weights(config()))
    assert torch.equal(tensors["model.norm.weight"], weights(config())["model.norm.weight"].bfloat16())


def test_config_keeps_the_keys_of_the_source(tmp_path: Path) -> None:
    path = convert(str(write_hf(tmp_path / "m", config(some_key=[1, 2]))), tmp_path / "store", "bf16")
    table = json.loads((path / "config.json").read_text())
    strata = table.pop("strata")
    assert table == config(some_key=[1, 2])
    assert (strata["format_version"], strata["dtype"]) == (2, "bf16")
    for shard in strata["shards"]:
        assert (path / shard["file"]).stat().st_size == shard["bytes"]


def wide() -> dict[str, Any]:
    """A model of 26 MB in bf16 whose largest weight has 4 MB."""
    return config(hidden_size=1024, intermediate_size=2048, num_hidden_layers=1, head_dim=256)


def test_shards_hold_at_most_what_was_asked(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "m", wide())
    one = Store.open(convert(str(source), tmp_path / "one", "bf16"))
    many = Store.open(convert(str(source), tmp_path / "many", "bf16", shard_size=5 << 20))
    assert len(one.manifest.shards) == 1
    sizes = [shard.bytes for shard in many.manifest.shards]
    assert len(sizes) > 3
    assert max(sizes) <= 5 << 20
    assert sum(sizes) == pytest.approx(one.manifest.shards[0].bytes, rel=0.01)
    found = dict(many.load())
    for name, weight in one.load():
        assert torch.equal(weight, found[name])


def test_a_weight_larger_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    store = Store.open(convert(str(write_hf(tmp_path / "m", wide())), tmp_path / "s", "bf16", shard_size=3 << 20))
    for shard, held in zip(store.manifest.shards, store.manifest.contents.shared, strict=True):
        assert shard.bytes <= 3 << 20 or len(held) == 1


def test_progress_grows_to_the_bytes_of_all_shards(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    source = write_hf(tmp_path / "m", wide())
    path = convert(str(source), tmp_path / "s", "int8", shard_size=3 << 20, progress=lambda *now: seen.append(now))
    total = sum(file.stat().st_size for file in (path / "shared").iterdir())
    assert list(dict.fromkeys(now[0] for now in seen)) == ["convert", "verify"]
    for phase in ("convert", "verify"):
        done = [now[1] for now in seen if now[0] == phase]
        assert {now[2] for now in seen if now[0] == phase} == {total}
        assert done == sorted(done)
        assert done[-1] == total
        assert len(done) > 5


# --- Faults: each leaves nothing behind.


def test_a_source_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"'.*nowhere' is no model: No such file or directory\. A model is a store"
    ):
        convert(str(tmp_path / "nowhere"), tmp_path / "store", "int4")
    assert entries(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 5000, "a\x00b", "~nobody-of-that-name/x"])
def test_a_source_whose_name_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="is no model"):
        convert(name, tmp_path / "store", "int4")


def test_an_unknown_dtype(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="dtype 'int3' is unknown; one of bf16, int8, int4"):
        convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "int3")
    assert entries(tmp_path) == ["m"]


def test_a_shard_size_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"shard size is 1000 bytes; at least {MIN_SHARD_SIZE}"):
        convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "int4", shard_size=1000)


def test_a_store_as_the_source(tmp_path: Path) -> None:
    path = convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "int4")
    with pytest.raises(CheckpointError, match="is a store already"):
        convert(str(path), tmp_path / "again", "int4")


@pytest.mark.parametrize(("is_file", "message"), [(True, "is no directory"), (False, "exists and is not empty")])
def test_a_target_that_exists(tmp_path: Path, is_file: bool, message: str) -> None:
    source = write_hf(tmp_path / "m")
    target = tmp_path / "store"
    if is_file:
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    with pytest.raises(UsageError, match=f"store {message}; give another directory, or remove it"):
        convert(str(source), target, "int4")
    assert entries(tmp_path) == ["m", "store"]
    assert (target if is_file else target / "mine").read_text() == "mine"


@pytest.mark.parametrize("to", ["store", "elsewhere"], ids=["itself", "a directory"])
def test_a_target_that_is_a_link_is_refused(tmp_path: Path, to: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").symlink_to(to)
    with pytest.raises(UsageError, match="store is a symbolic link; give another directory, or remove it"):
        convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "int4")
    assert entries(tmp_path) == ["elsewhere", "m", "store"]


def test_an_empty_target_is_taken(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    Store.open(convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "int4"))


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*/file: a file is in the way"):
        convert(str(write_hf(tmp_path / "m")), tmp_path / "file" / "store", "int4")


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match=r"0\.00 GB free; the store needs 0\.00 GB"):
        convert(str(write_hf(tmp_path / "m")), tmp_path / "store", "int4")
    assert entries(tmp_path) == ["m"]


def test_an_unsupported_architecture(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "m", config(), tensors=weights(config()))
    (source / "config.json").write_text(json.dumps(config(architectures=["MambaForCausalLM"])))
    with pytest.raises(UnsupportedModelError, match="'MambaForCausalLM' is not supported; supported: "):
        convert(str(source), tmp_path / "store", "int4")
    assert entries(tmp_path) == ["m"]


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_a_tensor_with_a_wrong_shape(tmp_path: Path, kind: str) -> None:
    tensors = weights(config())
    tensors["model.norm.weight"] = torch.ones(65)
    source = write_hf(tmp_path / "m", tensors=tensors) if kind == "hf" else write_gguf(tmp_path / "m", tensors=tensors)
    with pytest.raises(CheckpointError, match=r"wrong shapes: model\.norm\.weight is \[65\], needed is \[64\]"):
        convert(str(source), tmp_path / "store", "int4")
    assert entries(tmp_path) == ["m"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_tensor_that_is_not_finite(tmp_path: Path, value: float) -> None:
    tensors = weights(config())
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    source = write_hf(tmp_path / "m", tensors=tensors)
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' holds NaN or infinite values"):
        convert(str(source), tmp_path / "store", "int4")
    assert entries(tmp_path) == ["m"]


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "m")
    (source / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"m/tokenizer\.json is missing"):
        convert(str(source), tmp_path / "store", "int4")
    assert entries(tmp_path) == ["m"]


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "64"},
        {"num_hidden_layers": 0},
        {"num_attention_heads": None},
        {"num_key_value_heads": "two"},
        {"head_dim": "x"},
        {"rms_norm_eps": "small"},
        {"rope_theta": []},
        {"rope_scaling": "linear"},
        {"eos_token_id": "</s>"},
        {"architectures": "LlamaForCausalLM"},
        {"vocab_size": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_config_with_a_wrong_type(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = write_hf(tmp_path / "m")
    (source / "config.json").write_text(json.dumps(config(**changes)))
    with pytest.raises(CheckpointError, match=r"m/config\.json"):
        convert(str(source), tmp_path / "store", "int4")
    assert entries(tmp_path) == ["m"]


def test_of_two_at_once_one_makes_the_store_and_the_other_is_refused(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "m")
    both_started = threading.Barrier(2)
    results: list[object] = []

    def work() -> None:
        both_started.wait()
        try:
            results.append(convert(str(source), tmp_path / "store", "int4"))
        except StrataError as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == ["PosixPath", "UsageError"]
    assert len(unpacked(tmp_path / "store")) == len(weights(config()))
    assert entries(tmp_path) == ["m", "store"]
