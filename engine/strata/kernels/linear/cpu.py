"""x @ W.T + b on the CPU, activations in bf16.

bf16 weights are re-ordered once for oneDNN. int4 weights are re-ordered once for torch's weight-only product, which
multiplies each nibble by a bf16 scale and adds a bf16 offset, 5.0 bits a weight; int8 weights run through the same
product as two planes of nibbles, w = scale * (16 * high + low), 10 bits a weight. Torch's own int8 product knows one
scale a row only, and was 1.3 times slower than the two planes.

A CPU without AVX-512 multiplies matrices in float32: oneDNN has no bf16 for it, and torch's own product of 128 rows
with a matrix 3072 x 576 took 450 ms where float32 takes 8 (one AVX2 core, 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.dequantize.reference import GROUP, int4_steps, unpack_nibbles
from strata.kernels.linear import reference
from strata.kernels.linear.reference import LinearFn

# The weight-only product takes time in proportion to its rows of x; beyond these, dequantising the whole matrix to bf16
# for oneDNN's product is faster. One Zen 4 core, matrix 3072 x 576, 2026-11: int4 64 rows 2.8 against 2.9 ms, 128 rows
# 5.5 against 4.1, 512 rows 22.0 against 11.2; int8 16 rows 1.4 against 1.7, 32 rows 2.8 against 2.1.
MAX_DIRECT_ROWS = {"int4": 64, "int8": 24}
# Of x, for which bf16 weights are not widened to float32: 0.37 against 0.45 ms, two rows 0.80 against 0.57.
MAX_SUMMED_ROWS = 1


def prepare(kind: str, parts: Mapping[str, Tensor], bias: Tensor | None, dtype: torch.dtype) -> LinearFn:
    """As ``reference.prepare``, for activations in bf16; the weight is re-ordered, ``parts`` may be dropped."""
    bias = None if bias is None else bias.to(dtype)
    if kind in MAX_DIRECT_ROWS and _tile_rows() is not None:
        return _TiledLinear(kind, parts, bias)
    if not multiplies_bf16():
        return _prepare_float32(kind, parts, bias, dtype)
    return _prepare_bf16(parts["weight"], bias) if kind == "bf16" else reference.prepare(kind, parts, bias, dtype)


def multiplies_bf16() -> bool:
    """Whether the product of two bf16 matrices is a fast one on this CPU."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _prepare_float32(kind: str, parts: Mapping[str, Tensor], bias: Tensor | None, dtype: torch.dtype) -> LinearFn:
    wide = None if bias is None else bias.float()

    def product(x: Tensor) -> Tensor:
        if kind == "bf16" and len(x) <= MAX_SUMMED_ROWS:
            return functional.linear(x, parts["weight"], bias)
        return reference.linear(x.float(), kind, parts, wide).to(dtype)

    return product


def _prepare_bf16(weight: Tensor, bias: Tensor | None) -> LinearFn:
    # One row: decode is what the order of the weight matters for.
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: product(x, ordered, bias, "none", [], "")


class _TiledLinear:
    """A weight in tiles of ``_tile_rows()`` rows: [tiles, planes * cols, rows of a tile / 2], the first half of a
    tile's rows in the low nibbles. ``steps`` bf16 [planes * groups, rows, 2]: w = (nibble - 8) * steps[0] + steps[1].
    """

    def __init__(self, kind: str, parts: Mapping[str, Tensor], bias: Tensor | None) -> None:
        self.planes = 2 if kind == "int8" else 1
        self.max_direct_rows = MAX_DIRECT_ROWS[kind]
        self.rows = parts["codes"].shape[0]
        self.bias = bias
        tile_rows = _tile_rows()
        assert tile_rows is not None, "the caller asks before"
        padding = -self.rows % tile_rows
        padded = {name: functional.pad(part, (0, 0) * (part.dim() - 1) + (0, padding)) for name, part in parts.items()}
        nibbles, scale, offset = _int8_planes(padded) if kind == "int8" else _int4_plane(padded)
        self.tiles = _tile(nibbles, tile_rows)
        # The product reads its tiles as [rows, cols / 2], whatever their order.
        self.packed = self.tiles.view(nibbles.shape[0], -1)
        self.steps = torch.stack([scale, offset], -1).transpose(0, 1).bfloat16().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] <= self.max_direct_rows:
            rows = x if self.planes == 1 else torch.cat((x, x), 1)
            out = torch._C._VariableFunctions._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.steps)
        else:
            out = _multiply(x, self._dequantized())
        if out.shape[1] != self.rows:
            out = out[:, : self.rows]
        return out if self.bias is None else out + self.bias

    def _dequantized(self) -> Tensor:
        """The transposed weight, bf16 [cols, padded rows]."""
        tiles, half = self.tiles.shape[0], self.tiles.shape[2]
        cols = self.tiles.shape[1] // self.planes
        out = torch.empty(cols, tiles, 2, half, dtype=torch.bfloat16)
        low, high = out.permute(2, 1, 0, 3).unbind(0)  # each [tiles, cols, half]
        if self.planes == 1:
            low.copy_((self.tiles & 15).sub_(8).view(torch.int8))
            high.copy_((self.tiles >> 4).sub_(8).view(torch.int8))
        else:
            upper, lower = self.tiles[:, :cols], self.tiles[:, cols:]
            # 128 turns the offset of the upper nibble, 8, into the sign of the byte.
            low.copy_((upper << 4).bitwise_or_(lower & 15).bitwise_xor_(128).view(torch.int8))
            high.copy_((upper & 240).bitwise_or_(lower >> 4).bitwise_xor_(128).view(torch.int8))
        grouped = out.view(cols // GROUP, GROUP, -1)
        # Side by side: torch's bf16 loops are eight times slower over every second number.
        scale, offset = (step.contiguous() for step in self.steps[-grouped.shape[0] :, None].unbind(-1))
        if self.planes == 1:
            torch.addcmul(offset, grouped, scale, out=grouped)
        else:
            grouped.mul_(scale)
        return out.view(cols, -1)


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    """bf16 [tokens, cols] @ [cols, rows]."""
    return x @ weight if multiplies_bf16() else (x.float() @ weight.float()).bfloat16()


def _int4_plane(parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Nibbles uint8 [rows, cols], and for w = (nibble - 8) * scale + offset: float32 [rows, groups] each."""
    scale, low = int4_steps(parts["scales"], parts["mins"], parts["super"])
    return unpack_nibbles(parts["codes"]).flatten(1), scale, low + 8 * scale


def _int8_planes(parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """High nibbles, then low nibbles: uint8 [rows, 2 * cols], and scales and offsets as ``_int4_plane``."""
    codes, scale = parts["codes"].view(torch.uint8), parts["scales"].float()
    nibbles = torch.cat([(codes >> 4) ^ 8, codes & 15], 1)
    return nibbles, torch.cat([16 * scale, scale], 1), torch.cat([torch.zeros_like(scale), 8 * scale], 1)


def _tile(nibbles: Tensor, tile_rows: int) -> Tensor:
    """uint8 [rows, cols] -> uint8 [rows / tile_rows, cols, tile_rows / 2]."""
    tiles = nibbles.view(-1, tile_rows, nibbles.shape[1]).transpose(1, 2)
    low, high = tiles.chunk(2, -1)
    return (high << 4).bitwise_or_(low).contiguous()


@cache
def _tile_rows() -> int | None:
    """Rows of a tile of torch's weight-only product on this CPU (64 with AVX-512, 32 with AVX2), found by packing a
    pattern; None where it orders nibbles in a way that is not known here."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX512", "AVX2"):
        return None
    pattern = torch.arange(64 * GROUP).mul_(7).remainder_(16).view(64, GROUP)
    # Without a repeat after 16 rows, which would hide a wrong order.
    pattern = (pattern + torch.arange(64)[:, None] // 16 * 5) % 16
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(pattern.int(), 1).flatten()
    for rows in (64, 32):
        if torch.equal(packed, _tile(pattern.to(torch.uint8), rows).flatten()):
            return rows
    return None
