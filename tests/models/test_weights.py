"""A checkpoint's tensors as the operations of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from strata import quant
from strata.kernels.layer import Kernels
from strata.kernels.linear.reference import LinearFn
from strata.kernels.matrix import Norm
from strata.kernels.operations import REFERENCE
from strata.models.weights import Weight, Weights
from strata.quant import QuantizedTensor


def packed_in_one_buffer(kind: str) -> dict[str, Weight]:
    """Two matrices with biases as a store's blob holds them: views of one buffer."""
    parts: dict[str, Tensor] = {}
    for name in ("a", "b"):
        weight = quant.get(kind).pack(torch.randn(32, 64))
        parts |= {f"{name}.{part}": tensor for part, tensor in weight.parts.items()}
        parts[f"{name}.bias"] = torch.randn(32)
    blob = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in parts.values()])
    views, at = {}, 0
    for part, tensor in parts.items():
        views[part] = blob[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        at += tensor.nbytes
    weights: dict[str, Weight] = {f"{name}.bias": views[f"{name}.bias"] for name in ("a", "b")}
    for name in ("a", "b"):
        mine = {part.removeprefix(f"{name}."): view for part, view in views.items() if part.startswith(f"{name}.")}
        del mine["bias"]
        weights[f"{name}.weight"] = QuantizedTensor(kind, (32, 64), mine)
    return weights


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_nothing_keeps_the_buffer_that_the_weights_came_in(kind: str, names: list[str]) -> None:
    taken: list[Tensor] = []

    def linear(kind: str, parts: Mapping[str, Tensor], bias: Tensor | None, dtype: torch.dtype) -> LinearFn:
        assert bias is not None
        taken.extend([*parts.values(), bias])
        return REFERENCE.linear(kind, parts, bias, dtype)

    given = packed_in_one_buffer(kind)
    x = torch.randn(3, 64)
    kernels = Kernels(replace(REFERENCE, linear=linear, rms_norm=lambda *arguments: lambda x: x), torch.float32)
    matrices = Weights(dict(given), kernels).matrices(*names)
    product = kernels.norm_linear(Norm(torch.ones(64), 0.0), matrices)
    assert taken
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in taken)
    expected = []
    for name in names:
        weight, bias = given[f"{name}.weight"], given[f"{name}.bias"]
        assert isinstance(weight, QuantizedTensor)
        expected.append(x @ quant.get(kind).unpack(weight).T + bias)
    assert torch.allclose(product(x), torch.cat(expected, -1), atol=1e-4)
