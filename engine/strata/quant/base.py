"""A weight in one of Strata's bit formats, and what every format can do.

A format stores a matrix of shape [rows, cols] (rows: outputs, cols: inputs) as a few named parts; the store keeps a
part of weight ``NAME`` as the tensor ``NAME.PART``. Formats are registered by name in ``strata.quant``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Tensor = Any  # torch.Tensor; this room must not import torch when it is imported

GROUP = 32  # weights along a row that share a scale

# Weights packed at a time: 1 MiB of float32, so that a core's cache holds the temporaries of the search
# (SmolLM2-135M on 2 cores: 2.3 times faster than whole matrices).
_CHUNK_WEIGHTS = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor of a format: its shape and its type in safetensors' words ("U8", "I8", "F16", "BF16")."""

    dtype: str
    shape: tuple[int, ...]


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

    @property
    def name(self) -> str:
        """As the user writes it."""

    def accepts(self, rows: int, cols: int) -> bool:
        """Whether a matrix of that shape can be packed; one that cannot stays in bf16."""

    def parts(self, rows: int, cols: int) -> dict[str, Part]:
        """The stored tensors of a matrix of that shape, in the order in which they are stored."""

    def pack(self, weight: Tensor) -> QuantizedTensor:
        """Round a finite float matrix [rows, cols] to this format."""

    def unpack(self, weight: QuantizedTensor) -> Tensor:
        """The float32 matrix [rows, cols] that the parts stand for."""

    def num_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a matrix of that shape; pure arithmetic, used by the planner too."""


def row_chunks(weight: Tensor) -> Iterator[Tensor]:
    """Float32 copies of a few rows of ``weight`` at a time, all rows once and in order."""
    rows, cols = weight.shape
    step = max(1, _CHUNK_WEIGHTS // cols)
    for start in range(0, rows, step):
        yield weight[start : start + step].float()


def concat(chunks: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Join the parts of consecutive rows."""
    import torch

    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
