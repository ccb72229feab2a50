"""The kernels read the bit order that ``strata.quant`` writes."""

from __future__ import annotations

import pytest
import torch

from strata import quant
from strata.kernels.dequantize.reference import dequantize


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4", "mxfp4"])
@pytest.mark.parametrize(
    "cols",
    [
        pytest.param(96, id="less than a superblock"),
        pytest.param(256, id="one superblock"),
        pytest.param(576, id="a last superblock that takes the rest"),
    ],
)
def test_reads_what_the_format_packs(kind: str, cols: int) -> None:
    packed = quant.get(kind).pack(torch.randn(40, cols))
    assert torch.equal(dequantize(kind, packed.parts, torch.float32), quant.get(kind).unpack(packed))
