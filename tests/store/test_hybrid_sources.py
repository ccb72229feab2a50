"""Checkpoints of models with linear attention: what is fused in them is taken apart, what is not run is left alone."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from strata.errors import CheckpointError
from strata.plan.shape import check
from strata.store.sources.safetensors import SafetensorsSource
from tests.models import tiny
from tests.models.cases import CASES as MODELS
from tests.store.test_schemes import CASES as SCHEMES

HYBRID = ("qwen3 next", "qwen3 next, yarn, a dense layer, all biases", "qwen3.5 moe")


def model_of(name: str) -> Any:
    """Its numbers are those that bfloat16 holds."""
    model = tiny.hf_model(MODELS[name].architecture, **MODELS[name].settings)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.bfloat16())
    return model


def write(directory: Path, model: Any, tensors: dict[str, torch.Tensor], **keys: Any) -> SafetensorsSource:
    directory.mkdir(exist_ok=True)
    table = {**model.config.to_dict(), "architectures": [type(model).__name__], **keys}
    (directory / "config.json").write_text(json.dumps(table))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return SafetensorsSource(directory)


def assert_holds(source: SafetensorsSource, expected: dict[str, torch.Tensor]) -> None:
    """Every needed tensor, as a whole and in pieces that cut through heads."""
    specs = check(source.model, {name: tensor.shape for name, tensor in source.tensors.items()}, origin="m")
    assert {spec.name for spec in specs} == set(expected)
    for name, numbers in expected.items():
        found = source.read(name)
        assert isinstance(found, torch.Tensor)
        assert found.is_contiguous()
        assert torch.equal(found.float(), numbers.float()), name
        if numbers.dim() == 2:
            at = [*range(0, len(numbers), 37), len(numbers)]
            pieces = [source.read(name, slice(*span)) for span in pairwise(at)]
            assert torch.equal(torch.cat(pieces).float(), numbers.float()), name


@pytest.mark.parametrize("name", HYBRID)
def test_what_is_fused_is_taken_apart(tmp_path: Path, name: str) -> None:
    model = model_of(name)
    expected = tiny.checkpoint(model)
    assert_holds(write(tmp_path / "memory", model, dict(model.state_dict())), expected)
    model.save_pretrained(tmp_path / "saved")
    assert_holds(SafetensorsSource(tmp_path / "saved"), expected)


@pytest.mark.parametrize("name", HYBRID)
def test_what_is_not_run_is_left_alone(tmp_path: Path, name: str) -> None:
    """Layers that guess further tokens have names of their own; what reads images is in the model anyway."""
    model = model_of(name)
    layer = {
        f"mtp.{key.removeprefix('model.').removeprefix('language_model.')}": tensor.clone()
        for key, tensor in model.state_dict().items()
        if ".layers.0." in key or ".layers.3." in key
    }
    guesses = {"mtp.fc.weight": torch.zeros(96, 192), "mtp.norm.weight": torch.zeros(96)}
    source = write(tmp_path, model, {**model.state_dict(), **layer, **guesses})
    assert any(key.startswith("mtp.") for key in source.tensors)
    check(source.model, {key: tensor.shape for key, tensor in source.tensors.items()}, origin="m")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_fused_matrices_may_be_quantised(tmp_path: Path, scheme: str) -> None:
    model, case = model_of("qwen3 next"), SCHEMES[scheme]
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in dict(model.state_dict()).items():
        module = name.removesuffix(".weight")
        if module.endswith(("in_proj_qkvz", "self_attn.q_proj")):
            parts, numbers = case.encode(module, tensor)
            stored |= parts
            model.get_parameter(name).data.copy_(numbers)
        else:
            stored[name] = tensor
    source = write(tmp_path, model, stored, quantization_config=case.settings)
    assert_holds(source, tiny.checkpoint(model))


@pytest.mark.parametrize(
    ("name", "fused", "named"),
    [
        ("qwen3 next", "linear_attn.in_proj_qkvz", "missing tensors: .*in_proj_qkv.weight.*unknown tensors: .*qkvz"),
        ("qwen3 next", "linear_attn.in_proj_ba", "missing tensors: .*in_proj_b.weight.*unknown tensors: .*ba.weight"),
        ("qwen3.5 moe", "self_attn.q_proj", "missing tensors: .*gate_proj.weight; wrong shapes: .*q_proj.weight is"),
    ],
)
def test_a_fused_matrix_of_another_size_is_named(tmp_path: Path, name: str, fused: str, named: str) -> None:
    model = model_of(name)
    tensors = {
        key: tensor[:-1] if key.endswith(f"{fused}.weight") else tensor for key, tensor in model.state_dict().items()
    }
    source = write(tmp_path, model, tensors)
    with pytest.raises(CheckpointError, match=named):
        check(source.model, {key: tensor.shape for key, tensor in source.tensors.items()}, origin="m")
