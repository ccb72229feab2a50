"""Routed experts: one blob each, at a place that follows from arithmetic alone."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import quant
from strata.config import read_hf_config
from strata.errors import CheckpointError
from strata.plan.shape import needed
from strata.quant import QuantizedTensor
from strata.quant.base import Tensor
from strata.store.convert import convert
from strata.store.encode import encode_blob
from strata.store.manifest import Contents, Manifest, Shard
from strata.store.plan import plan
from strata.store.reader import Store
from strata.store.sources.base import WHOLE, SourceTensor
from tests.store.checkpoints import config, weights, write_hf

NUM_EXPERTS = 5
LAYERS = (0, 2, 3)  # 1 has a plain MLP


def moe(**changes: Any) -> dict[str, Any]:
    """A tiny Qwen3-MoE whose second layer is dense."""
    table = config(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        num_hidden_layers=4,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
    )
    return table | changes


def plain(weight: Any) -> torch.Tensor:
    """A weight as float32."""
    return quant.get(weight.format).unpack(weight) if isinstance(weight, QuantizedTensor) else weight.float()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """In int4; nobody may change it."""
    directory = tmp_path_factory.mktemp("moe")
    source = write_hf(directory / "m", moe())
    return Store.open(convert(str(source), directory / "s", "int4", shard_size=1 << 20))


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_a_store_holds_the_experts_of_its_source(tmp_path: Path, dtype: str) -> None:
    written = weights(moe())
    store = Store.open(convert(str(write_hf(tmp_path / "m", moe())), tmp_path / "s", dtype))
    loaded = dict(store.load())
    assert set(loaded) == set(written)
    for name, weight in loaded.items():
        tensor = written[name]
        expected = tensor if dtype == "bf16" or ".experts." not in name else plain(quant.get(dtype).pack(tensor))
        if dtype == "bf16" or ".experts." in name:
            assert torch.equal(plain(weight), expected), name


def test_experts_and_only_they_lie_in_their_files(store: Store) -> None:
    shared = {path.name for path in (store.path / "shared").iterdir()}
    assert len(shared) == 1
    assert not any(".experts." in name for name in store.manifest.contents.weights)
    layout = store.manifest.contents.experts
    assert layout is not None
    assert not any("gate." in name for name in layout.weights), "the router is no expert's"


def test_a_blob_lies_where_the_format_says(store: Store) -> None:
    # docs/store-format.md, computed without the reader: 4 KiB blobs, parts at multiples of 128 bytes.
    sizes = [96 * 32, 96 * 2, 96 * 2, 96 * 4] * 2 + [64 * 48, 64 * 3, 64 * 3, 64 * 4]
    starts = [sum(-(-size // 128) * 128 for size in sizes[:index]) for index in range(len(sizes))]
    blob_bytes = -(-(starts[-1] + sizes[-1]) // 4096) * 4096
    data = (store.path / "experts" / "00001-of-00001.bin").read_bytes()
    assert len(data) == blob_bytes * NUM_EXPERTS * len(LAYERS)
    written = weights(moe())
    for layer, expert in ((0, 0), (2, 1), (3, NUM_EXPERTS - 1)):
        blob = data[(LAYERS.index(layer) * NUM_EXPERTS + expert) * blob_bytes :][:blob_bytes]
        expected = bytearray(blob_bytes)
        place = iter(starts)
        for matrix in ("gate_proj", "up_proj", "down_proj"):
            packed = quant.get("int4").pack(written[f"model.layers.{layer}.mlp.experts.{expert}.{matrix}.weight"])
            for part in ("codes", "scales", "mins", "super"):
                at = next(place)
                value = packed.parts[part].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                expected[at : at + len(value)] = value
        assert blob == expected


def test_files_hold_at_most_what_was_asked(tmp_path: Path) -> None:
    table = moe(hidden_size=256, moe_intermediate_size=512)
    source = write_hf(tmp_path / "m", table)
    path = convert(str(source), tmp_path / "s", "bf16", shard_size=2 << 20)  # a blob has 768 KiB
    sizes = [file.stat().st_size for file in sorted((path / "experts").iterdir())]
    assert sizes == [2 * 768 << 10] * 7 + [768 << 10]
    one = convert(str(source), tmp_path / "one", "bf16", shard_size=1 << 20)
    assert {file.stat().st_size for file in (one / "experts").iterdir()} == {768 << 10}
    assert [torch.equal(a, b) for (_, a), (_, b) in zip(Store.open(path).load(), Store.open(one).load(), strict=True)]


@pytest.fixture
def shards(tmp_path: Path) -> Store:
    """Experts in nine files."""
    table = moe(hidden_size=256, moe_intermediate_size=512)
    source = write_hf(tmp_path / "m", table)
    return Store.open(convert(str(source), tmp_path / "s", "bf16", shard_size=2 << 20))


def test_threads_take_each_expert_once(shards: Store) -> None:
    taken: list[tuple[tuple[int, int], torch.Tensor]] = []
    seen: list[tuple[int, int]] = []
    rest = dict(
        shards.load(
            progress=lambda *now: seen.append(now), put_expert=lambda expert, blob: taken.append((expert, blob.clone()))
        )
    )
    layout = shards.manifest.contents.experts
    assert layout is not None
    assert not any(".experts." in name for name in rest)
    assert sorted(expert for expert, _ in taken) == sorted(layout.experts)
    for expert, blob in taken:
        file, offset = layout.place(*expert)
        data = (shards.path / layout.files[file]).read_bytes()
        assert blob.numpy().tobytes() == data[offset : offset + layout.blob_bytes]
    total = sum(shard.bytes for shard in shards.manifest.shards)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_damaged_file_of_many_is_named(shards: Store) -> None:
    layout = shards.manifest.contents.experts
    assert layout is not None
    file = shards.path / layout.files[5]
    data = bytearray(file.read_bytes())
    data[layout.blob_bytes + 9] ^= 4
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{file.name}: its checksum is"):
        list(shards.load(put_expert=lambda expert, blob: None))


def test_what_putting_an_expert_raises_ends_loading(shards: Store) -> None:
    def put(expert: tuple[int, int], blob: Tensor) -> None:
        if expert == (3, 1):
            raise MemoryError("no slot")

    with pytest.raises(MemoryError, match="no slot"):
        list(shards.load(put_expert=put))


def test_buffers_of_all_threads_are_bounded(shards: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.store.reader.num_cpus", lambda: 2)
    assert shards.num_loading_threads == 4
    monkeypatch.setattr("strata.store.reader._BUFFER_BYTES", 48 << 20)
    assert shards.num_loading_threads == 3


# --- what a conversion plans


class Planned:
    """A source with the names, shapes and types of one that would be too large to write."""

    origin = "planned"
    config: Mapping[str, Any] = {}

    def __init__(self, table: Mapping[str, Any], **dtypes: str) -> None:
        self.model = read_hf_config(table, origin="test")
        self.specs = needed(self.model)
        self.tensors = {
            spec.name: SourceTensor(
                spec.shape, next((dtype for word, dtype in dtypes.items() if word in spec.name), "BF16")
            )
            for spec in self.specs
        }

    def plan(self, dtype: str, shard_size: int) -> Contents:
        types = {name: tensor.dtype for name, tensor in self.tensors.items()}
        return plan(self.specs, types, dtype, shard_size, origin=self.origin)

    def read(self, name: str, rows: slice = WHOLE) -> Tensor | QuantizedTensor:
        shape = self.tensors[name].shape
        tensor = (torch.arange(prod(shape)) % 7 - 3.0).view(shape)
        return quant.get("mxfp4").pack(tensor) if self.tensors[name].dtype == "MXFP4" else tensor

    def write_tokenizer(self, directory: Path) -> None:
        raise NotImplementedError


def test_the_manifest_of_many_experts_is_small() -> None:
    table = moe(hidden_size=2048, moe_intermediate_size=768, vocab_size=151936, head_dim=128, num_attention_heads=32)
    table |= {"num_hidden_layers": 48, "num_experts": 128, "mlp_only_layers": []}
    source = Planned(table)
    assert len(source.specs) > 18_432
    contents = source.plan("int4", 128 << 20)
    shards = tuple(Shard(file, 1, "0" * 32) for file in contents.files)
    manifest = Manifest("int4", contents, shards)
    text = json.dumps(manifest.to_table())
    assert len(text) < 64_000
    assert Manifest.from_table(json.loads(text), source.specs, origin="test") == manifest
    assert contents.experts is not None
    assert 15e9 < contents.experts.num_bytes < 17e9
    assert contents.experts.place(47, 127) == (len(contents.experts.files) - 1, 6143 % 49 * contents.experts.blob_bytes)


def test_mxfp4_experts_are_kept_as_they_are() -> None:
    source = Planned(moe(), experts="MXFP4")
    layout = source.plan("int4", 1 << 20).experts
    assert layout is not None
    assert {weight.format for weight in layout.weights.values()} == {"mxfp4"}
    blob = encode_blob(source, layout, 2, 3)
    packed = source.read("model.layers.2.mlp.experts.3.up_proj.weight")
    assert isinstance(packed, QuantizedTensor)
    at, part = layout.parts["up_proj.weight.codes"]
    assert part.shape == (96, 32)
    assert blob[at : at + 96 * 32] == packed.parts["codes"].numpy().tobytes()


def test_experts_are_all_alike_where_their_types_are_not() -> None:
    source = Planned(moe(), **{"layers.3.mlp.experts.4.up": "MXFP4"})
    layout = source.plan("bf16", 1 << 20).experts
    assert layout is not None
    assert {weight.format for weight in layout.weights.values()} == {"bf16"}
    blob = encode_blob(source, layout, 3, 4)
    packed = source.read("model.layers.3.mlp.experts.4.up_proj.weight")
    at, _ = layout.parts["up_proj.weight"]
    stored = torch.frombuffer(bytearray(blob[at : at + 96 * 64 * 2]), dtype=torch.bfloat16)
    assert torch.equal(stored.float(), plain(packed).view(-1))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        pytest.param(lambda t: t["experts"].pop("formats"), "table is damaged", id="no formats"),
        pytest.param(lambda t: t.update(experts=None), "which do not fit the config's", id="no experts"),
        pytest.param(lambda t: t["experts"]["formats"].update(x="int4"), "which do not fit", id="one too many"),
        pytest.param(
            lambda t: t["experts"]["formats"].update({"up_proj.weight": "int3"}), "which do not fit", id="unknown"
        ),
        pytest.param(
            lambda t: t["experts"]["formats"].update({"up_proj.weight": "int8"}),
            "an expert has 12288 bytes in the store, of this config it has 16384",
            id="another",
        ),
        pytest.param(lambda t: t["experts"].update(blobs_per_shard=0), "a shard has 0 experts", id="none a file"),
        pytest.param(lambda t: t["experts"].update(blobs_per_shard=1), "that are not the 16", id="one a file"),
        pytest.param(
            lambda t: t["shared"][0].update(
                {"model.layers.0.mlp.experts.0.up_proj.weight": {"format": "bf16", "shape": [96, 64]}}
            ),
            "a weight lies in two places",
            id="an expert among the shared",
        ),
    ],
)
def test_an_altered_table_is_refused(store: Store, edit: Any, message: str) -> None:
    table = json.loads((store.path / "config.json").read_text())
    edit(table["strata"])
    with pytest.raises(CheckpointError, match=message):
        Manifest.from_table(table["strata"], needed(store.model_config), origin="config.json")


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_one_altered_bit_of_an_expert_is_found(tmp_path: Path, place: float) -> None:
    store = Store.open(convert(str(write_hf(tmp_path / "m", moe())), tmp_path / "s", "int4"))
    file = store.path / "experts" / "00001-of-00001.bin"
    data = bytearray(file.read_bytes())
    data[int((len(data) - 1) * place)] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"00001-of-00001\.bin: its checksum is"):
        list(store.load())


# What stands where something else belongs.
ODD: list[Any] = [None, -1, 0, 7, 1 << 70, 1.5, math.inf, "", "int8", "../x", True, [], [7], {}, {"a": 1}]


def places(value: Any) -> list[tuple[dict[str, Any] | list[Any], Any]]:
    """Every place in a JSON value: what holds it, and its key or index there."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in items] + [place for _, held in items for place in places(held)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_stands_in_the_table_is_read_or_refused(store: Store, data: st.DataObject) -> None:
    table = json.loads((store.path / "config.json").read_text())["strata"]
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places(table)))
        if data.draw(st.booleans()):
            holder[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))  # the next round may edit it
        else:
            del holder[key]
    try:
        manifest = Manifest.from_table(table, needed(store.model_config), origin="config.json")
    except CheckpointError:
        return
    assert manifest.contents.num_bytes > 0
    assert len(manifest.shards) == len(manifest.contents.files)
