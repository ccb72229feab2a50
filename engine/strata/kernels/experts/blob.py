"""Where the matrices of a routed expert lie in its blob."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """A matrix [rows, cols] in bit format ``kind``. offsets: bytes from the start of the blob to each part, whose rows
    lie one behind the other; bias: to the float32 or bf16 bias [rows] of ``bias_dtype`` ("F32", "BF16"), or None."""

    kind: str
    rows: int
    cols: int
    offsets: Mapping[str, int]
    bias: int | None = None
    bias_dtype: str = "BF16"


@dataclass(frozen=True, slots=True)
class BlobLayout:
    """gate and up [intermediate, hidden], down [hidden, intermediate]; all experts of a model are alike. Parts start at
    multiples of 128 bytes, blobs at multiples of 4096."""

    gate: MatrixPlace
    up: MatrixPlace
    down: MatrixPlace
    num_bytes: int
