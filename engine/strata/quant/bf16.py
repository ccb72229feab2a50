"""Plain bfloat16: 16 bits a weight, relative error 2^-9 at most."""

from __future__ import annotations

from strata.quant.base import Part, QuantizedTensor, Tensor


class BF16:
    """Part ``weight``: bfloat16 [rows, cols]."""

    name = "bf16"

    def accepts(self, rows: int, cols: int) -> bool:
        return True

    def parts(self, rows: int, cols: int) -> dict[str, Part]:
        return {"weight": Part("BF16", (rows, cols))}

    def num_bytes(self, rows: int, cols: int) -> int:
        return 2 * rows * cols

    def pack(self, weight: Tensor) -> QuantizedTensor:
        import torch

        rows, cols = weight.shape
        return QuantizedTensor(self.name, (rows, cols), {"weight": weight.to(torch.bfloat16)})

    def unpack(self, weight: QuantizedTensor) -> Tensor:
        return weight.parts["weight"].float()
