"""Layers of experts in blobs, with random weights, and what they give in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from strata import quant
from strata.kernels.experts.blob import BlobLayout, MatrixPlace
from strata.kernels.matrix import Activation
from strata.quant.base import QuantizedTensor

ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    kind: str
    hidden: int
    intermediate: int
    experts: int
    biases: str | None = None  # "F32", "BF16"


@dataclass(frozen=True, slots=True)
class Layer:
    """blobs: uint8 [experts, bytes]; layout and addresses: as the kernels take them."""

    layout: BlobLayout
    blobs: Tensor
    addresses: Tensor

    def matrix(self, expert: int, name: str) -> tuple[Tensor, Tensor]:
        """Weight [rows, cols] and bias [rows] in float64."""
        place: MatrixPlace = getattr(self.layout, name)
        parts = {}
        for part, spec in quant.get(place.kind).parts(place.rows, place.cols).items():
            dtype = DTYPES[spec.dtype]
            begin = place.offsets[part]
            size = torch.Size(spec.shape).numel() * dtype.itemsize
            parts[part] = self.blobs[expert, begin : begin + size].view(dtype).view(spec.shape)
        weight = quant.get(place.kind).unpack(QuantizedTensor(place.kind, (place.rows, place.cols), parts)).double()
        if place.bias is None:
            return weight, torch.zeros(place.rows, dtype=torch.float64, device=weight.device)
        dtype = DTYPES[place.bias_dtype]
        end = place.bias + place.rows * dtype.itemsize
        return weight, self.blobs[expert, place.bias : end].view(dtype).double()

    def expected(self, inner: Tensor, ids: Tensor, shares: Tensor, activation: Activation, here: Tensor) -> Tensor:
        """The sum of shares * experts, float64 [tokens, hidden]; here bool [experts]: those that are computed."""
        out = torch.zeros(inner.shape, dtype=torch.float64, device=inner.device)
        for expert in ids.unique().tolist():
            if not here[expert]:
                continue
            token, k = (ids == expert).nonzero(as_tuple=True)
            x = inner[token].double()
            gate, up = (
                x @ weight.T + bias for weight, bias in (self.matrix(expert, "gate"), self.matrix(expert, "up"))
            )
            if activation.limit is None:
                activated = gate * gate.sigmoid() * up
            else:
                gate = gate.clamp(max=activation.limit)
                activated = (up.clamp(-activation.limit, activation.limit) + 1) * gate * (1.702 * gate).sigmoid()
            weight, bias = self.matrix(expert, "down")
            out.index_add_(0, token, shares[token, k].double()[:, None] * (activated @ weight.T + bias))
        return out


DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I8": torch.int8, "U8": torch.uint8}


def make_layout(shape: Shape) -> BlobLayout:
    at = 0
    places = []
    for rows, cols in ((shape.intermediate, shape.hidden),) * 2 + ((shape.hidden, shape.intermediate),):
        offsets = {}
        for part, spec in quant.get(shape.kind).parts(rows, cols).items():
            offsets[part] = at
            at += _up(torch.Size(spec.shape).numel() * DTYPES[spec.dtype].itemsize, 128)
        bias = None
        if shape.biases is not None:
            bias = at
            at += _up(rows * DTYPES[shape.biases].itemsize, 128)
        places.append(MatrixPlace(shape.kind, rows, cols, offsets, bias, shape.biases or "BF16"))
    gate, up, down = places
    return BlobLayout(gate, up, down, _up(at, ALIGNMENT))


def make_layer(shape: Shape, device: str) -> Layer:
    """Weights of about unit gain, biases of about a tenth of the products."""
    layout = make_layout(shape)
    memory = torch.empty(shape.experts * layout.num_bytes + ALIGNMENT, dtype=torch.uint8, device=device)
    begin = -memory.data_ptr() % ALIGNMENT
    blobs = memory[begin : begin + shape.experts * layout.num_bytes].view(shape.experts, -1)
    generator = torch.Generator(device).manual_seed(0)
    for place in (layout.gate, layout.up, layout.down):
        _fill(blobs, place, generator)
    addresses = blobs.data_ptr() + torch.arange(shape.experts, device=device) * layout.num_bytes
    return Layer(layout, blobs, addresses)


def _fill(blobs: Tensor, place: MatrixPlace, generator: torch.Generator) -> None:
    experts, rows, cols = blobs.shape[0], place.rows, place.cols

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=blobs.device)

    def below(end: int, *size: int) -> Tensor:
        return torch.randint(0, end, size, generator=generator, device=blobs.device, dtype=torch.uint8)

    def put(offset: int, values: Tensor) -> None:
        values = values.contiguous().view(experts, -1).view(torch.uint8)
        blobs[:, offset : offset + values.shape[1]] = values

    if place.kind == "bf16":
        put(place.offsets["weight"], (normal(experts, rows, cols) / cols**0.5).bfloat16())
    elif place.kind == "int8":
        put(place.offsets["codes"], (below(255, experts, rows, cols).int() - 127).to(torch.int8))
        put(place.offsets["scales"], (normal(experts, rows, cols // 32).abs() / 73 / cols**0.5).half())
    else:
        put(place.offsets["codes"], below(256, experts, rows, cols // 2))
        if place.kind == "mxfp4":
            scale = below(3, experts, rows, cols // 32) + (125 - int(cols.bit_length() / 2))
            put(place.offsets["scales"], scale)
        else:
            scales = below(256, experts, rows, cols // 32)
            put(place.offsets["scales"], scales)
            # About half of the range below zero, as weights have it.
            put(place.offsets["mins"], (scales.int() * 15 // 16).to(torch.uint8))
            d = (1 + normal(experts, rows, max(1, cols // 256)).abs()) / 1200 / cols**0.5
            put(place.offsets["super"], torch.stack([d, 8 * d], -1).half())
    if place.bias is not None:
        put(place.bias, (0.1 * normal(experts, rows)).to(DTYPES[place.bias_dtype]))


def _up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
