"""The tiles of a matrix, in plain torch: what ``src/tiles.cpp`` has to give. For tests, and for those who read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata.native.layout import GROUP, ROWS, TILE_GROUPS

Tensor = Any  # torch.Tensor; this room must not import torch when it is imported


def tile_rows(format_: str, parts: Mapping[str, Tensor]) -> Tensor:
    """The row blocks of one matrix, uint8 [blocks, bytes of a block]. ``parts``: as ``strata.quant`` packs it."""
    import torch

    codes, scales = _words(format_, parts), _headers(format_, parts)
    blocks, lines = codes.shape[0], codes.shape[1] // GROUP
    codes = codes.view(blocks, lines, -1)
    pieces = []
    for first in range(0, lines, TILE_GROUPS):
        if scales is not None:
            pieces.append(scales[:, first // TILE_GROUPS])
        pieces.append(codes[:, first : first + TILE_GROUPS].reshape(blocks, -1))
    return torch.cat(pieces, 1)


def _words(format_: str, parts: Mapping[str, Tensor]) -> Tensor:
    """Codes in groups of words, for each word one of each row: uint8 [blocks, 32 * groups, bytes / 32 of a group]."""
    import torch

    codes = parts["weight" if format_ == "bf16" else "codes"].view(torch.uint8)
    if format_ == "int8":
        codes = codes ^ 128
    row_bytes = codes.shape[1]
    group_bytes = {"int4": 16, "int8": 32, "mxfp4": 16, "bf16": 64}[format_]
    codes = _padded(codes, -row_bytes % group_bytes)
    groups = codes.shape[1] // group_bytes
    words = codes.view(-1, ROWS, groups * group_bytes // 4, 4).transpose(1, 2)
    return words.reshape(words.shape[0], groups * GROUP, -1)


def _headers(format_: str, parts: Mapping[str, Tensor]) -> Tensor | None:
    """uint8 [blocks, tiles, bytes of a header]"""
    import torch

    if format_ == "bf16":
        return None

    def by_tile(values: Tensor) -> Tensor:  # [rows, groups] -> uint8 [blocks, tiles, 8 groups of 16 rows]
        padded = _padded(values, -values.shape[1] % TILE_GROUPS)
        tiles = padded.view(-1, ROWS, padded.shape[1] // TILE_GROUPS, TILE_GROUPS).permute(0, 2, 3, 1)
        return tiles.reshape(tiles.shape[0], tiles.shape[1], -1).view(torch.uint8)

    scales = by_tile(parts["scales"])
    if format_ != "int4":
        return scales
    tiles = scales.shape[1]
    super_ = parts["super"]
    # The groups behind the last whole superblock belong to it, and have a tile of their own.
    super_ = _padded(super_[:, torch.arange(tiles).clamp(max=super_.shape[1] - 1)].flatten(1), 0)
    super_ = super_.view(-1, ROWS, tiles, 2).permute(0, 2, 3, 1).reshape(-1, tiles, 2 * ROWS).view(torch.uint8)
    return torch.cat([super_, by_tile(parts["mins"]), scales], 2)


def _padded(values: Tensor, cols: int) -> Tensor:
    """With zeros up to whole row blocks, and ``cols`` more columns."""
    from torch.nn import functional

    return functional.pad(values, (0, cols, 0, -values.shape[0] % ROWS)).contiguous()
