"""Hugging Face checkpoint directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.sources import open_source
from strata.store.sources.safetensors import SafetensorsSource
from tests.store.checkpoints import config, weights, write_hf


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_reads_the_weights_that_were_written(tmp_path: Path, dtype: torch.dtype, shards: int) -> None:
    written = weights(config())
    source = SafetensorsSource(write_hf(tmp_path / "m", dtype=dtype, shards=shards))
    assert set(source.tensors) == set(written)
    for name, tensor in written.items():
        assert source.tensors[name].shape == tuple(tensor.shape)
        found = source.read(name)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == dtype
        assert torch.equal(found, tensor.to(dtype))
        assert torch.equal(source.read(name, slice(3, 7)), tensor[3:7].to(dtype))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m", shards=3)
    (path / "model-2-of-3.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2-of-3\.safetensors is missing"):
        SafetensorsSource(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_shard_is_named(tmp_path: Path, share: float) -> None:
    path = write_hf(tmp_path / "m", shards=3)
    shard = path / "model-2-of-3.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"model-2-of-3\.safetensors is truncated or damaged"):
        SafetensorsSource(path)


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    file = path / "model.safetensors"
    file.write_bytes(b"\xff" * 64 + file.read_bytes()[64:])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or damaged"):
        SafetensorsSource(path)


def test_tensors_that_only_the_index_has_are_named(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m", shards=2)
    index = path / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["model.lost.weight"] = "model-1-of-2.safetensors"
    index.write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match=r"lists tensors that its files do not hold: model\.lost\.weight"):
        SafetensorsSource(path)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    path = write_hf(tmp_path / "m", shards=2)
    (path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        SafetensorsSource(path)


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m", shards=2)
    (path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        SafetensorsSource(path)


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    tensors = weights(config())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, str(path / "model.safetensors"))
    with pytest.raises(
        UnsupportedModelError, match=r"'model\.norm\.weight' has the type F8_E4M3; supported: BF16, F16"
    ):
        SafetensorsSource(path)


def test_quantised_checkpoints_are_refused_by_their_method(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m", config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}))
    supported = "awq, gptq, compressed-tensors, fp8, fbgemm_fp8, mxfp4, plain BF16"
    with pytest.raises(UnsupportedModelError, match=f"'bitsandbytes' are not supported; supported: {supported}"):
        SafetensorsSource(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_broken_config_is_named(tmp_path: Path, text: str) -> None:
    path = write_hf(tmp_path / "m")
    (path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"m/config\.json"):
        SafetensorsSource(path)


def tokenizer_files(tmp_path: Path, **settings: Any) -> tuple[Path, dict[str, Any]]:
    path = write_hf(tmp_path / "m")
    if settings:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    out = tmp_path / "out"
    out.mkdir()
    SafetensorsSource(path).write_tokenizer(out)
    return out, json.loads((out / "tokenizer_config.json").read_text())


def test_tokenizer_files_are_taken_over(tmp_path: Path) -> None:
    out, settings = tokenizer_files(tmp_path)
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "m" / "tokenizer.json").read_bytes()
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": [2, 0]}
    assert settings["chat_template"].startswith("{% for m in messages %}")


def test_special_tokens_become_plain_strings(tmp_path: Path) -> None:
    _, settings = tokenizer_files(tmp_path, eos_token={"content": "<|im_end|>", "lstrip": False}, bos_token=None)
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["bos_token"] is None
    assert settings["chat_template"] is None


def test_special_tokens_of_any_name_become_plain_strings(tmp_path: Path) -> None:
    _, settings = tokenizer_files(tmp_path, sep_token={"content": "<sep>"}, add_bos_token=True)
    assert (settings["sep_token"], settings["add_bos_token"]) == ("<sep>", True)


@pytest.mark.parametrize("text", ["[", pytest.param("[" * 100_000, id="deeper than Python recurses")])
def test_a_broken_generation_config_is_named(tmp_path: Path, text: str) -> None:
    path = write_hf(tmp_path / "m")
    (path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"m/generation_config\.json is not JSON"):
        SafetensorsSource(path).write_tokenizer(tmp_path)


def test_of_several_templates_those_for_chats_and_for_tools_are_taken(tmp_path: Path) -> None:
    templates = [{"name": name, "template": name.upper()} for name in ("rag", "default", "tool_use")]
    settings = tokenizer_files(tmp_path, chat_template=templates)[1]
    assert (settings["chat_template"], settings["tool_chat_template"]) == ("DEFAULT", "TOOL_USE")


def test_a_template_file_wins(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    (path / "chat_template.jinja").write_text("{{ 'jinja' }}")
    SafetensorsSource(path).write_tokenizer(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == "{{ 'jinja' }}"


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    (path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"m/tokenizer\.json is missing"):
        SafetensorsSource(path).write_tokenizer(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"m/tokenizer\.json is not a tokenizer"):
        SafetensorsSource(path).write_tokenizer(tmp_path)


def test_a_broken_config_is_named_before_missing_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], "it is empty"),
        (["README.md", "a.txt"], r"it holds README\.md, a\.txt\."),
        (["config.json", "pytorch_model.bin"], r"it has a config\.json, but no \*\.safetensors"),
        (["x.gguf"], r"it holds x\.gguf; give the path of the \.gguf file itself"),
    ],
)
def test_a_directory_that_is_no_model_says_what_was_found(tmp_path: Path, files: list[str], found: str) -> None:
    for file in files:
        (tmp_path / file).write_text("{}")
    with pytest.raises(CheckpointError, match=rf"is not a model: {found}.*A model is a store made by `strata convert`"):
        open_source(tmp_path)
