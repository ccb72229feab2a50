"""Findings about a model's files: real ones, whole and damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.config.model_name import BuiltinName
from strata.doctor.examine import examine
from strata.doctor.finding import Finding, Level
from strata.doctor.model import check_model
from strata.plan.fake_nvml import GIB, FakeCard, FakeNvml
from strata.plan.memory import DeviceMemory
from strata.store.convert import convert
from strata.store.locate import resolve
from strata.store.sources import obtain
from strata.store.sources.builtin import builtin_path
from tests.doctor.machine import machine
from tests.engine.tiny_llama import CONFIG, write_checkpoint
from tests.store.hub import Hub, serving

ROOM = DeviceMemory("cpu", GIB, GIB)


def found(source: Path | str, memory: DeviceMemory = ROOM) -> dict[str, Finding]:
    findings = check_model(str(source), "int4", memory, Path("/"))
    return {finding.topic: finding for finding in findings if finding.topic != "cache"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def test_the_model_that_comes_along_is_well() -> None:
    findings = found("builtin://smollm2-135m")
    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert findings["model"].message.startswith("272 tensors, all that are needed: LlamaForCausalLM, 30 layers")
    assert findings["tokenizer"].message == "49152 tokens"


def test_a_store_is_known_and_keeps_its_dtype(checkpoint: Path, tmp_path: Path) -> None:
    convert(str(checkpoint), tmp_path / "store", "int8")
    findings = found(tmp_path / "store")
    assert findings["model"].message.startswith("a store of int8, ")
    assert findings["fit"].message.startswith("int8: ")
    shard = next((tmp_path / "store").rglob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    cut = found(tmp_path / "store")["model"]
    assert cut.level is Level.FAIL
    assert shard.name in cut.message


def test_a_checkpoint_without_a_chat_template_serves_completions(checkpoint: Path) -> None:
    (checkpoint / "tokenizer_config.json").write_text("{}")
    finding = found(checkpoint)["chat template"]
    assert finding.level is Level.WARN
    assert "/v1/completions works" in finding.message


def without_tokenizer(path: Path) -> str:
    (path / "tokenizer.json").unlink()
    return "tokenizer.json"


def cut_weights(path: Path) -> str:
    os.truncate(path / "model.safetensors", 1000)
    return "model.safetensors"


def another_architecture(path: Path) -> str:
    (path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}))
    return "MambaForCausalLM"


def more_layers(path: Path) -> str:
    (path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 9}))
    return "missing tensors"


@pytest.mark.parametrize("damage", [without_tokenizer, cut_weights, another_architecture, more_layers])
def test_what_cannot_be_served_fails_with_its_name(checkpoint: Path, damage: object) -> None:
    assert callable(damage)
    words = damage(checkpoint)
    finding = found(checkpoint)["model"]
    assert finding.level is Level.FAIL
    assert words in finding.message


def test_a_tokenizer_of_another_model(checkpoint: Path, tmp_path: Path) -> None:
    table = json.loads((checkpoint / "tokenizer.json").read_text())
    size = int(str(CONFIG["vocab_size"]))
    table["model"]["vocab"] |= {f"more{i}": size + i for i in range(5)}
    (checkpoint / "tokenizer.json").write_text(json.dumps(table))
    finding = found(checkpoint)["tokenizer"]
    assert finding.level is Level.FAIL
    assert str(size) in finding.message


@pytest.mark.parametrize(("device", "mib"), [("cpu", 512), ("cuda", 672)])  # steps captured on a card take some
def test_too_little_memory_says_what_fits(device: str, mib: int) -> None:
    finding = found("builtin://smollm2-135m", DeviceMemory(device, mib << 20, mib << 20))["fit"]
    assert finding.level is Level.WARN
    assert f"int4: {device} has not the memory" in finding.message
    assert "What fits: max_model_len " in finding.message


def test_on_a_cpu_weights_count_as_its_kernels_keep_them() -> None:
    room = {device: DeviceMemory(device, 64 << 30, 64 << 30) for device in ("cpu", "cuda")}
    said = {device: found("builtin://smollm2-135m", memory)["fit"].message for device, memory in room.items()}
    assert "125.8 MiB of weights" in said["cpu"]
    assert "87.2 MiB of weights" in said["cuda"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def test_a_model_on_the_hub_is_judged_by_its_config(hub: Hub, checkpoint: Path) -> None:
    hub.repo("acme/tiny").commit({file.name: file.read_bytes() for file in checkpoint.iterdir()})
    findings = found("acme/tiny")
    assert hub.fetched() == ["config.json"]
    assert found("acme/other")["model"].level is Level.FAIL
    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert "only config.json was looked at" in findings["model"].message
    assert findings["fit"].message.startswith("int4: ")


def test_a_gguf_on_the_hub_is_looked_at_once_it_is_here(hub: Hub) -> None:
    data = builtin_path(BuiltinName("smollm2-135m")).read_bytes()
    hub.repo("acme/tiny-GGUF").commit({"tiny-Q4_1.gguf": data, "tiny-Q8_0.gguf": b"another"})
    unseen = found("acme/tiny-GGUF:Q4_1")
    assert list(unseen) == ["model"]
    assert (unseen["model"].level, unseen["model"].advice) == (Level.WARN, "strata fetch acme/tiny-GGUF:Q4_1")
    assert found("acme/tiny-GGUF:Q5_K")["model"].level is Level.FAIL, "no such file"
    obtain("acme/tiny-GGUF:Q4_1")
    seen = found("acme/tiny-GGUF:Q4_1")
    assert seen["model"].message.startswith("272 tensors, all that are needed")
    assert {finding.level for finding in seen.values()} == {Level.OK}


def test_a_model_of_the_hub_that_was_converted_is_its_store(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """As `strata serve` takes it, without the network."""
    hub.repo("acme/tiny").commit({file.name: file.read_bytes() for file in checkpoint.iterdir()})
    resolve("acme/tiny", "int4", tmp_path / "cache")
    hub.status = 503
    findings = {finding.topic: finding for finding in check_model("acme/tiny", "int4", ROOM, tmp_path / "cache")}
    assert findings["model"].message.startswith("a store of int4, ")
    assert Level.FAIL not in {finding.level for finding in findings.values()}


def test_nowhere() -> None:
    assert found("/no/such/model")["model"].level is Level.FAIL


def test_everything_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    findings = examine(
        "builtin://smollm2-135m", root=machine(tmp_path / "root"), library=FakeNvml([FakeCard(name="NVIDIA RTX")])
    )
    topics = [finding.topic for finding in findings]
    assert topics.index("driver") < topics.index("cpu") < topics.index("python") < topics.index("model")
    assert "fit in VRAM" in next(finding.message for finding in findings if finding.topic == "fit")
