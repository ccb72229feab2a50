"""A store's layout of experts in the kernels' words."""

from __future__ import annotations

from strata.kernels.experts.blob import BlobLayout, MatrixPlace
from strata.store.layout import ExpertLayout


def blob_layout(layout: ExpertLayout) -> BlobLayout:
    """Where the matrices of every blob lie."""
    gate, up, down = (_place(layout, f"{name}_proj") for name in ("gate", "up", "down"))
    return BlobLayout(gate, up, down, layout.blob_bytes)


def _place(layout: ExpertLayout, name: str) -> MatrixPlace:
    weight = layout.weights[f"{name}.weight"]
    rows, cols = weight.shape
    offsets = {
        "weight" if part == f"{name}.weight" else part.removeprefix(f"{name}.weight."): layout.parts[part][0]
        for part in weight.tensors(f"{name}.weight")
    }
    if f"{name}.bias" not in layout.weights:
        return MatrixPlace(weight.format, rows, cols, offsets)
    at, bias = layout.parts[f"{name}.bias"]
    return MatrixPlace(weight.format, rows, cols, offsets, at, bias.dtype)
