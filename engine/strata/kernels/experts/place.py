"""The experts of a layer as their kernels' launchers take them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from strata.kernels.experts.blob import BlobLayout, MatrixPlace
from strata.kernels.matrix import Activation


@dataclass(frozen=True, slots=True)
class Place:
    """A ``MatrixPlace`` as a constant of a kernel: bytes from the start of the blob, 0 for what the format has not
    (``codes`` are the weights themselves in bf16); bias: -1 for none."""

    kind: str
    rows: int
    cols: int
    codes: int
    scales: int
    mins: int
    super: int
    bias: int
    bias_is_float32: bool

    @property
    def lane(self) -> int:
        """Columns that take 16 bytes."""
        return {"int8": 16, "bf16": 8}.get(self.kind, 32)

    @classmethod
    def of(cls, place: MatrixPlace) -> Place:
        offsets = place.offsets
        return cls(
            place.kind,
            place.rows,
            place.cols,
            offsets["weight" if place.kind == "bf16" else "codes"],
            offsets.get("scales", 0),
            offsets.get("mins", 0),
            offsets.get("super", 0),
            -1 if place.bias is None else place.bias,
            place.bias_dtype == "F32",
        )


@dataclass(frozen=True, slots=True)
class Experts:
    """addresses: int64 [experts], of the blobs; limit: of the activation."""

    gate: Place
    up: Place
    down: Place
    addresses: Tensor
    limit: float | None

    @classmethod
    def of(cls, layout: BlobLayout, addresses: Tensor, activation: Activation) -> Experts:
        return cls(Place.of(layout.gate), Place.of(layout.up), Place.of(layout.down), addresses, activation.limit)

    @property
    def count(self) -> int:
        return self.addresses.shape[0]
