"""A weight in one of Strata's bit formats, and what every format can do.

A format stores a matrix of shape [rows, cols] (rows: outputs, cols: inputs) as a few named parts; the store keeps a
part of weight ``NAME`` as the tensor ``NAME.PART``. Formats are registered by name in ``strata.quant``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

Tensor = Any  # torch.Tensor; this room must not import torch when it is imported

GROUP = 32  # weights along a row that share a scale

# Weights packed at a time: 1 MiB of float32, so that a core's cache holds the temporaries of the search. int4 on one
# core of an EPYC server: 39 million weights/s; 19 with 2^15 weights, 24 with a whole 2048 x 2048 matrix (2026-11-29).
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


def pack_rows(weight: Tensor, pack: Callable[[Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Apply ``pack`` to a few rows of ``weight`` at a time, as float32, and join the parts of all rows.

    On the CPU each chunk runs on one thread of its own. torch's way, every small operation on all threads, waits by
    spinning: with busy neighbours on the same cores it packs ten times slower.
    """
    import torch

    rows, cols = weight.shape
    step = max(1, _CHUNK_WEIGHTS // cols)

    def chunk(start: int) -> dict[str, Tensor]:
        return pack(weight[start : start + step].float())

    starts = range(0, rows, step)
    if weight.device.type == "cpu":
        num_threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                packed = list(pool.map(chunk, starts))
        finally:
            torch.set_num_threads(num_threads)
    else:
        packed = [chunk(start) for start in starts]
    return {name: torch.cat([parts[name] for parts in packed]) for name in packed[0]}
