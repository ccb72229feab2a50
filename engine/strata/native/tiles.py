"""From a store's row-major parts of an expert to tiles and back.

One call is one expert on one thread, without the interpreter's lock: threads of the caller make it as many at once as
there are cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from strata.native.layout import MATRICES, PARTS, TileLayout
from strata.native.library import LayoutArguments, load

_MAX_PARTS = 4


def tile_expert(layout: TileLayout, parts: Mapping[str, int], blob: int, *, narrow_biases: bool = False) -> None:
    """Write the tiles of an expert to the address ``blob``, ``layout.num_bytes`` of them, 64-byte aligned.

    ``parts``: addresses of the store's tensors by ``layout.parts``. Biases are float32, or bf16 with ``narrow_biases``.
    """
    _copy(layout, parts, blob, narrow_biases, back=False)


def untile_expert(layout: TileLayout, blob: int, parts: Mapping[str, int], *, narrow_biases: bool = False) -> None:
    """The inverse: fill ``parts`` from the tiles at ``blob``."""
    _copy(layout, parts, blob, narrow_biases, back=True)


def _copy(layout: TileLayout, parts: Mapping[str, int], blob: int, narrow_biases: bool, *, back: bool) -> None:
    assert blob % 64 == 0, f"an expert's tiles must be aligned to 64 bytes, {blob:#x} is not"
    addresses = (ctypes.c_void_p * (len(MATRICES) * _MAX_PARTS))()
    for i, matrix in enumerate(MATRICES):
        for j, part in enumerate(PARTS[layout.format]):
            addresses[i * _MAX_PARTS + j] = parts[f"{matrix}.weight{part}"]
    biases = (ctypes.c_void_p * len(MATRICES))(*(parts[f"{m}.bias"] if layout.bias else None for m in MATRICES))
    load().strata_tile_expert(ctypes.byref(LayoutArguments.of(layout)), addresses, biases, narrow_biases, blob, back)
