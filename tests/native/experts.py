"""Random experts in a store's parts and as tiles, and the float64 computation that the kernels are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strata import quant
from strata.native.layout import MATRICES, TileLayout
from strata.native.tiles import tile_expert

ALPHA = 1.702


@dataclass
class Expert:
    """One expert: its parts by the store's names, and the numbers that they stand for."""

    layout: TileLayout
    parts: dict[str, Tensor] = field(default_factory=dict)
    matrices: dict[str, Tensor] = field(default_factory=dict)  # float64
    biases: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def random(cls, layout: TileLayout, seed: int) -> Expert:
        """Weights as a trained model has them, a little off zero in the mean."""
        generator = torch.Generator().manual_seed(seed)
        made = cls(layout)
        form = quant.get(layout.format)
        for name in MATRICES:
            rows, cols = layout.intermediate, layout.hidden
            if name == "down_proj":
                rows, cols = cols, rows
            weight = torch.randn(rows, cols, generator=generator) * cols**-0.5 + 0.1 * cols**-0.5
            packed = form.pack(weight)
            made.matrices[name] = form.unpack(packed).double()
            for part, tensor in packed.parts.items():
                made.parts[f"{name}.weight" if part == "weight" else f"{name}.weight.{part}"] = tensor.contiguous()
            if layout.bias:
                made.biases[name] = made.parts[f"{name}.bias"] = torch.randn(rows, generator=generator) * 0.3
        return made

    def addresses(self) -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in self.parts.items()}

    def tiles(self) -> Tensor:
        """uint8 [bytes], filled with what is no scale and no code before."""
        blob = aligned(self.layout.num_bytes).fill_(0xA5)
        tile_expert(self.layout, self.addresses(), blob.data_ptr())
        return blob

    def __call__(self, x: Tensor, limit: float | None = None) -> Tensor:
        """x float64 [tokens, hidden] -> float64 [tokens, hidden]"""
        bias = self.biases.get
        gate = x @ self.matrices["gate_proj"].T + bias("gate_proj", torch.zeros(1)).double()
        up = x @ self.matrices["up_proj"].T + bias("up_proj", torch.zeros(1)).double()
        if limit is None:
            inner = gate * torch.sigmoid(gate) * up
        else:
            gate = gate.clamp(max=limit)
            inner = gate * torch.sigmoid(ALPHA * gate) * (up.clamp(-limit, limit) + 1)
        return inner @ self.matrices["down_proj"].T + bias("down_proj", torch.zeros(1)).double()


def aligned(num_bytes: int) -> Tensor:
    """uint8 [num_bytes] at a multiple of 128."""
    whole = torch.zeros(num_bytes + 128, dtype=torch.uint8)
    start = -whole.data_ptr() % 128
    return whole[start : start + num_bytes]


def expected(
    experts: Mapping[int, Expert], x: Tensor, ids: Tensor, weights: Tensor, limit: float | None = None
) -> Tensor:
    """float64 [tokens, hidden]: the weighted sum of each token's experts; negative ids count nothing."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            if expert >= 0:
                out[token] += weight * experts[expert](x[token : token + 1].double(), limit)[0]
    return out
