"""OCP microscaling FP4: E2M1 numbers in groups of 32 along a row that share a power of two, 4.25 bits a weight.

    w[r, c] = 2^(scales[r, g] - 127) * E2M1[code[r, c]]      g = c // 32

E2M1: codes 0 .. 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6, and codes 8 .. 15 the same below zero. Scales are E8M0, an exponent
alone; from 253 on they are not finite (255 is NaN, and with 253 and 254 the largest codes leave float32). Nibbles are
in the order of ``strata.quant.nibbles``. Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3 and 5.4.

The format is for checkpoints that ship it. It is no target for others: on normal weights its error is 1.6 times that of
int4, which takes 0.38 bits more.
"""

from __future__ import annotations

from itertools import pairwise

from strata.quant.base import GROUP, Part, QuantizedTensor, Tensor, pack_rows
from strata.quant.nibbles import pack_nibbles, unpack_nibbles

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MAX_SCALE = 252  # the largest that is finite whatever the code
_LARGEST_EXPONENT = 2  # of 4 and 6
_BIAS = 127


class MXFP4:
    """Parts ``codes``: uint8 [rows, cols/2]; ``scales``: uint8 [rows, cols/32]."""

    name = "mxfp4"

    def accepts(self, rows: int, cols: int) -> bool:
        return cols % GROUP == 0

    def parts(self, rows: int, cols: int) -> dict[str, Part]:
        return {"codes": Part("U8", (rows, cols // 2)), "scales": Part("U8", (rows, cols // GROUP))}

    def num_bytes(self, rows: int, cols: int) -> int:
        return rows * (cols // 2 + cols // GROUP)

    def pack(self, weight: Tensor) -> QuantizedTensor:
        rows, cols = weight.shape
        return QuantizedTensor(self.name, (rows, cols), pack_rows(weight, _pack_rows))

    def unpack(self, weight: QuantizedTensor) -> Tensor:
        import torch

        rows, cols = weight.shape
        codes, scales = weight.parts["codes"], weight.parts["scales"]
        table = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)], device=codes.device)
        numbers = table.index_select(0, unpack_nibbles(codes).flatten().int()).view(rows, -1, GROUP)
        return (numbers * _power_of_two(scales)[..., None]).view(rows, cols)


def _pack_rows(weight: Tensor) -> dict[str, Tensor]:
    """The specification's rule: the largest weight of a group takes the largest exponent, what lies above 6 then is cut
    off. Weights that were MXFP4 once come back exactly."""
    import torch

    rows, cols = weight.shape
    groups = weight.view(rows, cols // GROUP, GROUP)
    largest = groups.abs().amax(-1)
    exponents = torch.frexp(largest).exponent - 1 - _LARGEST_EXPONENT + _BIAS
    scales = torch.where(largest > 0, exponents, 0).clamp_(0, MAX_SCALE).to(torch.uint8)
    scaled = groups.abs() * _power_of_two(2 * _BIAS - scales)[..., None]
    # A number half-way between two codes goes to the even one: a border belongs below it or, every second one, above.
    borders = torch.tensor([(low + high) / 2 for low, high in pairwise(MAGNITUDES)])
    borders[1::2] = torch.nextafter(borders[1::2], torch.zeros(()))
    codes = torch.bucketize(scaled, borders.to(weight.device)).to(torch.uint8)
    codes |= (groups < 0).to(torch.uint8) << 3
    return {"codes": pack_nibbles(codes.view(rows, cols)), "scales": scales}


def _power_of_two(scales: Tensor) -> Tensor:
    """E8M0 as float32, exactly: a float32 is its exponent shifted, but 2^-127 is subnormal."""
    import torch

    return torch.where(scales == 0, 1 << 22, scales.int() << 23).int().view(torch.float32)
