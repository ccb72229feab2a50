"""Stores with random weights of a shape."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strata import quant
from strata.bench import random_weights
from strata.bench.loaded import open_model, together
from strata.bench.random_weights import RandomWeights
from strata.bench.shape import SHAPE_DTYPES, write_shape
from strata.config import DeviceConfig, ModelConfig, read_hf_config
from strata.config.public import SHAPES
from strata.errors import CheckpointError, OptionError, StorageError, UsageError
from strata.ngram.stored import open_tables
from strata.plan import shape
from strata.plan.shape import Role, TensorSpec, needed
from strata.quant import QuantizedTensor
from strata.server.tokenizer import Tokenizer
from strata.store.progress import silent
from strata.store.reader import Store

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 2000,
    "hidden_size": 256,
    "moe_intermediate_size": 96,
    "intermediate_size": 96,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "eos_token_id": 7,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_local_experts": 4,
    "experts_per_token": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "quantization_config": {"quant_method": "mxfp4"},
}


QWEN3_NEXT: dict[str, Any] = {
    **QWEN,
    "architectures": ["Qwen3NextForCausalLM"],
    "shared_expert_intermediate_size": 96,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}


@pytest.fixture(autouse=True)
def _small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_weights, "_CODES", 64 * 5_003)


def config(directory: Path, table: dict[str, Any]) -> str:
    """The path of a config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps(table))
    return str(path)


def plain(weight: Any) -> torch.Tensor:
    return quant.get(weight.format).unpack(weight) if isinstance(weight, QuantizedTensor) else weight.float()


def expected_std(name: str, shape: torch.Size) -> float:
    return 6**0.5 if "embed" in name else shape[-1] ** -0.5


@pytest.mark.parametrize("dtype", SHAPE_DTYPES)
def test_weights_have_no_bias_and_the_spread_of_their_columns(tmp_path: Path, dtype: str) -> None:
    store = Store.open(write_shape(config(tmp_path, QWEN), dtype, tmp_path / "store", progress=silent))
    assert store.dtype == ("int4" if dtype == "mxfp4" else dtype)
    formats: dict[str, set[str]] = {}
    for name, weight in store.load():  # which compares the checksums
        values = plain(weight)
        if values.ndim == 2:
            kind = next(word for word in ("expert", "gate", "embed", "attn", "head") if word in name)
            formats.setdefault(kind, set()).add(getattr(weight, "format", "bf16"))
            std = expected_std(name, values.shape)
            assert values.mean().abs() < 0.15 * std, name
            # A power of two is the finest scale of MXFP4.
            assert 0.6 * std < values.std() < 1.5 * std, name
    rest = "int4" if dtype == "mxfp4" else dtype
    embedding = "bf16" if dtype == "bf16" else "int8"
    kinds = {"expert": dtype, "gate": "bf16", "embed": embedding, "attn": rest, "head": embedding}
    assert formats == {kind: {name} for kind, name in kinds.items()}


@pytest.mark.parametrize(("table", "dtype"), [(QWEN, "int4"), (GPT_OSS, "mxfp4"), (QWEN3_NEXT, "int8")])
def test_a_store_runs_and_answers_vary(tmp_path: Path, table: dict[str, Any], dtype: str) -> None:
    path = write_shape(config(tmp_path, table), dtype, tmp_path / "store", progress=silent)
    loaded = open_model(
        str(path), "int4", device=DeviceConfig(device="cpu", num_threads=1), max_model_len=40, progress=silent
    )
    store, runner = loaded.store, loaded.runner
    assert "quantization_config" not in json.loads((path / "config.json").read_text())
    prompt = list(range(32))
    logits = runner.run(together(runner, [prompt], 0, 40)).logits
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 2
    best = logits.argmax(-1)
    assert not torch.equal(best, runner.run(together(runner, [prompt[::-1]], 0, 40)).logits.argmax(-1))
    assert store.model_config.num_layers == table["num_hidden_layers"]


def test_the_same_shape_has_the_same_bytes_whatever_is_made_first(tmp_path: Path) -> None:
    specs = needed(read_hf_config(QWEN, origin="test"))
    path = write_shape(config(tmp_path, QWEN), "int4", tmp_path / "store", progress=silent)
    store = Store.open(path)
    weights = RandomWeights(specs)
    (shard,) = [path / shard.file for shard in store.manifest.shards if shard.file.endswith(".bin")]
    layout = store.manifest.contents.experts
    assert layout is not None
    for layer, expert in reversed(layout.held(0)):
        _, offset = layout.place(layer, expert)
        made = b"".join(weights.blob(layout, layer, expert))
        assert shard.read_bytes()[offset : offset + layout.blob_bytes] == made


def test_no_two_rows_are_alike(tmp_path: Path) -> None:
    table = QWEN | {"num_hidden_layers": 1, "hidden_size": 1024}  # several times a pool's size
    store = Store.open(write_shape(config(tmp_path, table), "int8", tmp_path / "store", progress=silent))
    codes = dict(store.load())["model.embed_tokens.weight"].parts["codes"]
    assert torch.unique(codes[:, :16].contiguous().view(torch.int64), dim=0).shape[0] == 2000


def choices(skew: float) -> torch.Tensor:
    """How often each expert is taken of all 16, likeliest first, by random hidden states."""
    specs = needed(read_hf_config(QWEN, origin="test"))
    weights = RandomWeights(specs, router_skew=skew)
    (router,) = [spec for spec in specs if spec.name == "model.layers.1.mlp.gate.weight"]
    (data,) = weights.weight(router.name, None)  # type: ignore[arg-type]  # its format is not asked for
    rows = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(router.shape).float()
    logits = torch.randn(4000, 256, generator=torch.Generator().manual_seed(0)) @ rows.T
    counts = torch.bincount(logits.topk(4).indices.flatten(), minlength=16)
    return counts.sort(descending=True).values / counts.sum()


def test_the_skew_makes_some_experts_likelier() -> None:
    even, skewed = choices(0), choices(2)
    assert even[:4].sum() < 0.3
    assert even[-1] > 0.5 / 16
    assert skewed[:4].sum() > 0.4
    assert skewed[-1] < 0.5 / 16


def test_layers_are_cut_with_what_is_listed_for_each(tmp_path: Path) -> None:
    path = write_shape(config(tmp_path, GPT_OSS), "int4", tmp_path / "store", num_layers=1, progress=silent)
    assert Store.open(path).model_config.windows == (128,)


def test_layers_are_cut_in_a_model_that_reads_images_too(tmp_path: Path) -> None:
    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    table = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {**QWEN3_NEXT, "layer_types": kinds},
    }
    path = write_shape(config(tmp_path, table), "int4", tmp_path / "store", num_layers=2, progress=silent)
    assert Store.open(path).model_config.linear_layers == (False, True)


def test_texts_and_ids_go_both_ways(tmp_path: Path) -> None:
    path = write_shape(config(tmp_path, QWEN), "int4", tmp_path / "store", progress=silent)
    tokenizer = Tokenizer(path)
    shown = tokenizer.detokenizer()
    words = shown.feed(range(257, 300)) + shown.flush()
    assert tokenizer.encode(words, add_special_tokens=False) == list(range(257, 300))
    text = "Why is the sky blue? 為什麼"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert shown.feed(ids) + shown.flush() == text
    assert shown.feed([7]) == "", "the end is no text"
    assert all(tokenizer.token_bytes(token_id) for token_id in range(2000))


@pytest.mark.parametrize("vocab_size", [3, 300])
def test_a_small_vocabulary_has_as_many_tokens_as_it_says(tmp_path: Path, vocab_size: int) -> None:
    table = QWEN | {"vocab_size": vocab_size, "eos_token_id": [1, 999]}  # one of them out of range
    path = write_shape(config(tmp_path, table), "int4", tmp_path / "store", progress=silent)
    assert len(json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]) == vocab_size


def test_what_is_public_can_be_planned() -> None:
    for name, path in SHAPES.items():
        assert needed(read_hf_config(json.loads(path.read_text()), origin=name))
    assert set(SHAPES) == {
        "gpt-oss-120b",
        "gpt-oss-20b",
        "mixtral-8x7b",
        "qwen3-235b-a22b",
        "qwen3-30b-a3b",
        "qwen3-8b",
        "qwen3-next-80b-a3b",
        "qwen3.8-flash-next",
        "smollm2-135m",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "qwen9"}, "'qwen9' is no shape; .* or one of gpt-oss-120b, .* qwen3-8b, .* smollm2-135m"),
        ({"dtype": "fp3"}, "dtype is 'fp3'; one of bf16, int8, int4, mxfp4 is needed"),
        ({"name": "qwen3-8b", "dtype": "mxfp4"}, "qwen3-8b has no experts, which alone are kept in mxfp4"),
        ({"num_layers": 4}, "4 layers are asked for; .* has 3"),
    ],
)
def test_bad_arguments_say_what_is_allowed(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arguments = {"name": config(tmp_path, QWEN), "dtype": "int4", **changes}
    with pytest.raises(OptionError, match=message):
        write_shape(out_dir=tmp_path / "store", progress=silent, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_target_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine").touch()
    with pytest.raises(UsageError, match="store exists and is not empty; give another directory, or remove it"):
        write_shape(config(tmp_path, QWEN), "int4", tmp_path / "store", progress=silent)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["mine"]


def test_a_disk_without_room_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(StorageError, match=r"has 0.00 GB free; the store needs 17\.\d\d GB"):
        write_shape("qwen3-30b-a3b", "int4", tmp_path / "store", progress=silent)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: 'hidden_size' is None"):
        write_shape(
            config(tmp_path, {key: QWEN[key] for key in QWEN if key != "hidden_size"}),
            "int4",
            tmp_path / "s",
            progress=silent,
        )


def test_several_threads_stop_at_the_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RandomWeights, "blob", fail)
    with pytest.raises(StorageError, match=r"cannot write .*store: No space left on device"):
        write_shape(config(tmp_path, QWEN), "int4", tmp_path / "store", progress=silent)


def test_a_table_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs, name = shape._specs, "model.layers.0.ple.ple_embedding.ngram_embedding.weight"

    def with_table(model: ModelConfig) -> Iterator[TensorSpec]:
        yield from specs(model)
        yield TensorSpec(name, (1 << 19, 160), Role.NGRAMS)

    monkeypatch.setattr(shape, "_specs", with_table)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN))
    store = Store.open(write_shape(str(config), "int4", tmp_path / "store", progress=silent))
    files = list((store.path / "tables").iterdir())
    assert sum(file.stat().st_size for file in files) == -(-(1 << 19) // 12) * 4096
    assert sum(file.stat().st_blocks for file in files) == 0
    table = open_tables(store, torch.device("cpu"), torch.bfloat16)[name]
    assert not table.begin(torch.tensor([[0, (1 << 19) - 1]])).wait().any()
    table.close()
