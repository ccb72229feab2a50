"""A weight in one of Strata's bit formats, and what every format can do.

A format stores a matrix of shape [rows, cols] (rows: outputs, cols: inputs) as a few named parts; the store keeps a part
of weight ``NAME`` as the tensor ``NAME.PART``. Formats are registered by name in ``strata.quant``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Tensor = Any  # torch.Tensor; this room must not import torch when it is imported


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix [rows, cols] in a format's parts."""

    format: str
    shape: tuple[int, int]
    parts: Mapping[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(part.numel() * part.element_size() for part in self.parts.values())


class Format(Protocol):
    """One bit format."""

    name: str
    part_names: tuple[str, ...]

    def pack(self, weight: Tensor) -> QuantizedTensor:
        """Round a float matrix [rows, cols] to this format."""

    def unpack(self, weight: QuantizedTensor) -> Tensor:
        """The float32 matrix [rows, cols] that the parts stand for."""

    def num_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a matrix of that shape; pure arithmetic, used by the planner too."""
