"""GGUF files of every family: its config, its names, its experts one at a time, in one file or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from strata import quant
from strata.config import read_hf_config
from strata.errors import CheckpointError, UnsupportedModelError
from strata.plan.shape import check
from strata.quant import QuantizedTensor
from strata.store.convert import convert
from strata.store.peek import peek
from strata.store.reader import Store
from strata.store.sources import source_files
from strata.store.sources.gguf import GGUFSource
from strata.store.sources.gguf_parts import GGUFParts
from tests.store.checkpoints import config, ggml_tensors, weights, write_gguf

EXPERTS = {"num_experts_per_tok": 2, "tie_word_embeddings": False}
ENDS = [2, 0]  # the file's own, and <|endoftext|>
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", config()),
    "mixtral": ("llama", config(architectures=["MixtralForCausalLM"], num_local_experts=3, **EXPERTS)),
    "qwen2": ("qwen2", config(architectures=["Qwen2ForCausalLM"], eos_token_id=ENDS)),
    "qwen2 moe": (
        "qwen2moe",
        config(
            architectures=["Qwen2MoeForCausalLM"],
            eos_token_id=ENDS,
            num_experts=3,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
            **EXPERTS,
        ),
    ),
    "qwen3": ("qwen3", config(architectures=["Qwen3ForCausalLM"], eos_token_id=ENDS)),
    "qwen3 moe": (
        "qwen3moe",
        config(
            architectures=["Qwen3MoeForCausalLM"],
            eos_token_id=ENDS,
            num_experts=3,
            moe_intermediate_size=32,
            norm_topk_prob=True,
            **EXPERTS,
        ),
    ),
    "gpt-oss": (
        "gpt-oss",
        config(
            architectures=["GptOssForCausalLM"],
            eos_token_id=ENDS,
            num_local_experts=3,
            moe_intermediate_size=96,
            sliding_window=16,
            rope_theta=150000.0,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 4,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            },
            **EXPERTS,
        ),
    ),
}


def write(path: Path, family: str, **options: Any) -> Path:
    architecture, table = FAMILIES[family]

    def edit(writer: gguf.GGUFWriter) -> None:
        if "rope_scaling" in table:
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(table["rope_scaling"]["factor"])
            writer.add_rope_scaling_orig_ctx_len(table["rope_scaling"]["original_max_position_embeddings"])

    return write_gguf(path, table, architecture=architecture, edit=edit, **options)


def check_same(source: GGUFSource, written: dict[str, torch.Tensor]) -> None:
    assert set(source.tensors) == set(written)
    for name, tensor in written.items():
        found = source.read(name)
        assert isinstance(found, torch.Tensor)
        assert source.tensors[name].shape == tuple(tensor.shape)
        assert torch.equal(found, tensor), name
        assert torch.equal(source.read(name, slice(1, 9)), tensor[1:9]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_and_the_config_are_those_of_the_model(tmp_path: Path, family: str) -> None:
    table = FAMILIES[family][1]
    source = GGUFSource(write(tmp_path / "m.gguf", family))
    model = read_hf_config(source.config, origin="gguf")
    assert model == read_hf_config(table, origin="hf")
    check(model, {name: tensor.shape for name, tensor in source.tensors.items()}, origin="gguf")
    check_same(source, weights(table))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen2 moe", "qwen3", "qwen3 moe"])
def test_the_library_reads_the_same_model(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda: True)  # asked for, never used
    path = write(tmp_path / "m.gguf", family)
    source = GGUFSource(path)
    settings = load_gguf_checkpoint(str(path))["config"]
    for key in ("hidden_size", "num_key_value_heads", "vocab_size", "tie_word_embeddings", "num_hidden_layers"):
        assert settings[key] == source.config[key]
    for key in ("rope_theta", "rms_norm_eps"):
        assert settings[key] == pytest.approx(source.config[key], rel=1e-6)
    known = transformers.AutoConfig.for_model(**source.config)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, config=known, dtype=torch.float32
    )
    assert type(theirs).__name__ == source.config["architectures"][0]
    parameters = theirs.state_dict()
    compared = 0
    for name in source.tensors:
        found = source.read(name)
        assert isinstance(found, torch.Tensor)
        if ".experts." in name:
            layer, rest = name.split(".experts.")
            expert, projection, _ = rest.split(".")
            stack = "down_proj" if projection == "down_proj" else "gate_up_proj"
            other = parameters[f"{layer}.experts.{stack}"][int(expert)]
            if stack == "gate_up_proj":
                other = other.chunk(2)[projection == "up_proj"]
        else:
            other = parameters[name]
        assert torch.equal(found, other), name
        compared += 1
    assert compared == len(weights(FAMILIES[family][1]))


def test_reading_one_expert_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GGUFSource(write(tmp_path / "m.gguf", "mixtral", kind="Q8_0"))
    read: list[int] = []
    original = GGUFParts.read

    def counted(parts: GGUFParts, *arguments: Any) -> Any:
        result = original(parts, *arguments)
        read.append(len(result[0]))
        return result

    monkeypatch.setattr(GGUFParts, "read", counted)
    source.read("model.layers.1.mlp.experts.2.up_proj.weight")
    source.read("model.layers.1.mlp.experts.2.down_proj.weight", slice(3, 5))
    assert read == [96 * 64 // 32 * 34, 2 * 96 // 32 * 34]


def test_mixtral_of_the_first_files_has_each_expert_by_itself(tmp_path: Path) -> None:
    table = FAMILIES["mixtral"][1]
    written = weights(table)
    plain = {name: tensor for name, tensor in written.items() if ".experts." not in name}
    kinds = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}

    def edit(writer: gguf.GGUFWriter) -> None:
        for name in written.keys() - plain.keys():
            _, _, layer, _, _, expert, projection, _ = name.split(".")
            writer.add_tensor(f"blk.{layer}.{kinds[projection]}.{expert}.weight", written[name].numpy())

    check_same(GGUFSource(write_gguf(tmp_path / "m.gguf", table, tensors=plain, edit=edit)), written)


def test_mxfp4_experts_are_kept(tmp_path: Path) -> None:
    architecture, table = FAMILIES["gpt-oss"]
    form, kind = quant.get("mxfp4"), gguf.GGMLQuantizationType.MXFP4
    written = {
        name: form.unpack(form.pack(tensor)) if ".experts." in name and name.endswith("weight") else tensor
        for name, tensor in weights(table).items()
    }
    stacked = ggml_tensors(written, table, architecture)
    plain = {name: tensor for name, tensor in written.items() if ".experts." not in name or name.endswith("bias")}

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_feed_forward_length(96)
        for name, data in stacked.items():
            if name.endswith("_exps.weight"):
                writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    path = write_gguf(tmp_path / "m.gguf", table, tensors=plain, architecture=architecture, edit=edit)
    assert peek(str(path)).expert_format == "mxfp4"
    source = GGUFSource(path)
    assert set(source.tensors) == set(written)
    for name in written:
        found = source.read(name)
        if name in plain:
            assert isinstance(found, torch.Tensor)
            continue
        assert isinstance(found, QuantizedTensor)
        assert source.tensors[name].dtype == "MXFP4"
        assert torch.equal(form.unpack(found), written[name]), name
        some = source.read(name, slice(3, 7))
        assert isinstance(some, QuantizedTensor)
        assert some.shape == (4, written[name].shape[1])
        assert torch.equal(form.unpack(some), written[name][3:7])
    store = Store.open(convert(str(path), tmp_path / "store", "int4"))
    kept = {name: weight for name, weight in store.load() if isinstance(weight, QuantizedTensor)}
    for name in written.keys() - plain.keys():
        assert kept[name].format == "mxfp4"
        assert torch.equal(form.unpack(kept[name]), written[name])


def test_a_damaged_mxfp4_expert_is_named(tmp_path: Path) -> None:
    table = FAMILIES["mixtral"][1]
    path = write(tmp_path / "m.gguf", "mixtral", kind="MXFP4")
    info = GGUFParts(path).tensors["blk.1.ffn_up_exps.weight"]
    data = bytearray(path.read_bytes())
    data[info.part(2).offset] = 255  # the exponent of the first block of expert 2
    path.write_bytes(data)
    source = GGUFSource(path)
    source.read("model.layers.1.mlp.experts.1.up_proj.weight")
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor 'blk\.1\.ffn_up_exps\.weight' holds NaN"):
        source.read("model.layers.1.mlp.experts.2.up_proj.weight")
    assert table["num_local_experts"] == 3


@pytest.mark.parametrize("family", ["mixtral", "qwen2 moe", "qwen3 moe", "gpt-oss"])
@pytest.mark.parametrize("key", ["expert_count", "expert_used_count"])
def test_a_missing_key_of_the_experts_is_named(tmp_path: Path, family: str, key: str) -> None:
    architecture = FAMILIES[family][0]
    path = write(tmp_path / "m.gguf", family, without=(f"{architecture}.{key}",))
    missing = "missing tensors: model.layers.0.mlp.gate_proj" if (family, key) == ("mixtral", "expert_count") else key
    with pytest.raises(CheckpointError, match=missing):  # without its experts, a Mixtral is a Llama
        convert(str(path), tmp_path / "store", "int4")


def test_experts_where_the_architecture_has_none_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "qwen3")
    path = write_gguf(tmp_path / "m.gguf", FAMILIES["qwen3"][1] | {"num_experts": 8}, architecture="qwen3")
    with pytest.raises(UnsupportedModelError, match=r"m\.gguf: a 'qwen3' with 8 experts is not supported"):
        GGUFSource(path)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    first = write(tmp_path / "m.gguf", "qwen2", tensors_per_part=11)
    paths = sorted(tmp_path.glob("*.gguf"))
    assert first == paths[0]
    assert [path.name for path in paths] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    return paths


def test_a_split_checkpoint_is_read_by_any_of_its_parts(parts: list[Path]) -> None:
    for part in parts:
        check_same(GGUFSource(part), weights(FAMILIES["qwen2"][1]))
        assert source_files(part) == parts


def test_missing_parts_are_named(parts: list[Path]) -> None:
    parts[0].unlink()
    with pytest.raises(CheckpointError, match=r"one of 3 parts; missing beside it: m-00001-of-00003\.gguf\. Fetch all"):
        GGUFSource(parts[1])
    assert source_files(parts[1]) == parts[1:]


def test_a_part_under_another_name_is_refused(parts: list[Path]) -> None:
    other = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(CheckpointError, match=r"model\.gguf is one of the 3 parts .* named NAME-00001-of-00003\.gguf"):
        GGUFSource(other)


def test_parts_in_the_wrong_order_are_named(parts: list[Path]) -> None:
    second = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(second)
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf says that it is part 3 of 3"):
        GGUFSource(parts[0])


def test_a_part_of_another_checkpoint_is_named(parts: list[Path], tmp_path: Path) -> None:
    write(tmp_path / "other" / "m.gguf", "qwen2", tensors_per_part=12)
    parts[2].write_bytes((tmp_path / "other" / "m-00003-of-00003.gguf").read_bytes())
    with pytest.raises(CheckpointError, match=r"m-0000\d-of-00003\.gguf"):
        GGUFSource(parts[0])


def test_a_truncated_part_is_named(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"m-00003-of-00003\.gguf is truncated: tensor '"):
        GGUFSource(parts[0])


def test_a_whole_file_may_be_named_as_a_part(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "qwen2").rename(tmp_path / "m-00001-of-00001.gguf")
    check_same(GGUFSource(path), weights(FAMILIES["qwen2"][1]))


def test_a_tensor_in_two_parts_is_named(parts: list[Path], tmp_path: Path) -> None:
    again = write(tmp_path / "again" / "m.gguf", "qwen2")
    names = {name for name, _ in GGUFParts(again).tensors.items()}
    assert names == set(GGUFParts(parts[0]).tensors)
    raw = np.zeros((4, 4), np.float32)
    writer = gguf.GGUFWriter(parts[2], "qwen2")
    writer.add_uint16("split.no", 2)
    writer.add_uint16("split.count", 3)
    writer.add_tensor("token_embd.weight", raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"m-00003.*m-00001-of-00003\.gguf has tensor 'token_embd\.weight', too"):
        GGUFSource(parts[0])
