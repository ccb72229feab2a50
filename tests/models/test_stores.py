"""From a checkpoint as ``transformers`` writes it, through a store, to logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from strata import quant
from strata.config import CacheConfig, DeviceConfig, EngineConfig
from strata.quant import QuantizedTensor
from strata.runner.runner import Runner
from strata.store.convert import convert
from strata.store.reader import Store
from tests.models import tiny
from tests.models.cases import CASES
from tests.store import checkpoints

TOKEN_IDS = [(7 * i + i * i) % 160 for i in range(100)]


def saved(name: str, directory: Path) -> Any:
    """A random model whose matrices bfloat16 holds exactly, written to ``directory``."""
    case = CASES[name]
    model = tiny.hf_model(case.architecture, **case.settings)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.bfloat16())
    checkpoints.write_hf(directory)  # its tokenizer; the rest is overwritten
    model.save_pretrained(directory)
    return model


def loaded(store: Store, compute_dtype: torch.dtype = torch.float32) -> Runner:
    config = EngineConfig(
        model=str(store.path), device=DeviceConfig(device="cpu", num_threads=1), cache=CacheConfig(num_kv_tokens=512)
    )
    return Runner.load(store, config, compute_dtype=compute_dtype)


def run(runner: Runner) -> torch.Tensor:
    return tiny.run_chunks(runner, TOKEN_IDS, 40, list(range(16)))


def middle(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error of the middle token. With rounded activations a router that wavers between two experts may choose
    the other, and that token's logits are then far off; so from one random model to the next even the middle one's
    error is half or twice that of ``transformers``."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).median())


@pytest.mark.parametrize(
    "name",
    [
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2 moe, a dense layer",
        "qwen3 moe",
        "gpt-oss",
        "qwen3 next",
        "qwen3 next, yarn, a dense layer, all biases",
        "qwen3.5 moe",
        "qwen4",
        "qwen4, pairs of streams, groups and grams, all of each index head turned",
    ],
)
def test_logits_of_a_store(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path / "source")
    store = Store.open(convert(str(tmp_path / "source"), tmp_path / "store", "bf16"))
    expected = tiny.reference_logits(model, TOKEN_IDS)
    assert tiny.relative(run(loaded(store)), expected) < 1e-4
    # What serves: bf16 activations, and the CPU's own products.
    error = middle(run(loaded(store, torch.bfloat16)), expected)
    reference_error = middle(tiny.reference_logits(model.bfloat16(), TOKEN_IDS).float(), expected)
    print(f"{name}: error with bf16 activations {error:.2e}, of transformers {reference_error:.2e}")
    assert error < 2 * reference_error


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", ["qwen2 moe, a dense layer", "gpt-oss"])
def test_quantised_experts(name: str, dtype: str, tmp_path: Path) -> None:
    """The same logits as from the numbers that the codes stand for."""
    model = saved(name, tmp_path / "source")
    store = Store.open(convert(str(tmp_path / "source"), tmp_path / "store", dtype))
    weights = dict(store.load())
    packed = {key: weight for key, weight in weights.items() if isinstance(weight, QuantizedTensor)}
    assert {weight.format for key, weight in packed.items() if ".experts." in key} == {dtype}
    numbers = {key: quant.get(weight.format).unpack(weight) for key, weight in packed.items()}
    numbers = {key: weight.float() for key, weight in (weights | numbers).items()}
    expected = run(tiny.runner_of(store.model_config, numbers))
    assert tiny.relative(run(loaded(store)), expected) < 1e-5
    # Rounding the activations costs what it does with the weights as they were.
    error = middle(run(loaded(store, torch.bfloat16)), expected)
    reference_error = middle(
        tiny.reference_logits(model.bfloat16(), TOKEN_IDS).float(), tiny.reference_logits(model.float(), TOKEN_IDS)
    )
    print(f"{name}, {dtype}: error with bf16 activations {error:.2e}, of transformers in bf16 {reference_error:.2e}")
    assert error < 2 * reference_error
