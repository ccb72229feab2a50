"""8-bit integers in groups of 32 along a row with one fp16 scale: 8.5 bits a weight.

    w[r, c] = scales[r, c // 32] * codes[r, c]        codes in -127 .. 127

A group that was 8-bit with the largest code at 127 already (GGUF Q8_0) comes back exactly.
"""

from __future__ import annotations

from strata.quant.base import GROUP, Part, QuantizedTensor, Tensor, pack_rows

_FP16_MAX = 65504.0


class Int8:
    """Parts ``codes``: int8 [rows, cols]; ``scales``: float16 [rows, cols/32]."""

    name = "int8"

    def accepts(self, rows: int, cols: int) -> bool:
        return cols % GROUP == 0

    def parts(self, rows: int, cols: int) -> dict[str, Part]:
        return {"codes": Part("I8", (rows, cols)), "scales": Part("F16", (rows, cols // GROUP))}

    def num_bytes(self, rows: int, cols: int) -> int:
        return rows * (cols + 2 * (cols // GROUP))

    def pack(self, weight: Tensor) -> QuantizedTensor:
        rows, cols = weight.shape
        return QuantizedTensor(self.name, (rows, cols), pack_rows(weight, _pack_rows))

    def unpack(self, weight: QuantizedTensor) -> Tensor:
        rows, cols = weight.shape
        codes, scales = weight.parts["codes"], weight.parts["scales"]
        return (codes.view(rows, -1, GROUP).float() * scales.float()[..., None]).view(rows, cols)


def _pack_rows(weight: Tensor) -> dict[str, Tensor]:
    import torch

    rows, cols = weight.shape
    groups = weight.view(rows, cols // GROUP, GROUP)
    largest = groups.abs().amax(-1).clamp_(max=127 * _FP16_MAX)
    scales = (largest / 127).half()
    # Where fp16 is subnormal its steps are coarse; round up there, or the largest weight would be cut off.
    scales = torch.where(scales.float() * 127.5 < largest, (scales.view(torch.int16) + 1).view(torch.half), scales)
    inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)
    codes = (groups * inverse[..., None]).round_().clamp_(-127, 127).to(torch.int8)
    return {"codes": codes.view(rows, cols), "scales": scales}
