"""What the registry refuses, and what it says then."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strata import quant
from strata.config import ARCHITECTURES
from strata.errors import CheckpointError
from strata.kernels.layer import Kernels
from strata.kernels.operations import REFERENCE
from strata.models import registry
from tests.models import tiny


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.hf_llama(num_hidden_layers=1)


def test_every_architecture_that_can_be_read_runs() -> None:
    assert set(registry.ARCHITECTURES) == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"model.layers.0.mlp.up_proj.weight": None}, "missing.*layers.0.mlp.up_proj.weight", id="missing"),
        pytest.param({"model.extra.weight": torch.zeros(3)}, "unknown.*model.extra.weight", id="belongs to nothing"),
        pytest.param({"model.norm.weight": torch.zeros(3)}, r"shape.*model.norm.weight is \[3\]", id="wrong shape"),
    ],
)
def test_tensors_that_do_not_fit_are_named(model: Any, change: dict[str, Any], message: str) -> None:
    tensors = {name: tensor for name, tensor in {**tiny.checkpoint(model), **change}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        registry.build(tiny.model_config(model), tensors, Kernels(REFERENCE, torch.float32), 64)


def test_every_tensor_is_used(model: Any) -> None:
    tensors = tiny.checkpoint(model)
    registry.build(tiny.model_config(model), tensors, Kernels(REFERENCE, torch.float32), 64)
    assert tensors == {}


def test_neighbours_in_different_formats(model: Any) -> None:
    """A store may keep one of q, k, v in another format than the others."""
    config = tiny.model_config(model)
    tensors = tiny.checkpoint(model)
    name = "model.layers.0.self_attn.k_proj.weight"
    packed = quant.get("int8").pack(tensors[name])
    mixed = tiny.runner_of(config, {**tensors, name: packed})
    plain = tiny.runner_of(config, {**tensors, name: quant.get("int8").unpack(packed)})
    token_ids = list(range(40))
    found, expected = (tiny.run_chunks(runner, token_ids, 40, [0, 1, 2]) for runner in (mixed, plain))
    assert tiny.relative(found, expected) < 1e-6
