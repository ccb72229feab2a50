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


def test_reads_every_number_and_scale_of_mxfp4() -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(253, 2)
    scales = torch.arange(253, dtype=torch.uint8)[:, None].expand(253, 32).contiguous()
    packed = quant.QuantizedTensor("mxfp4", (253, 1024), {"codes": codes, "scales": scales})
    assert torch.equal(dequantize("mxfp4", packed.parts, torch.float32), quant.get("mxfp4").unpack(packed))
