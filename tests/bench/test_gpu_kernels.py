"""The measurement of a GPU's products: what it takes, and on a GPU what it finds."""

from __future__ import annotations

import pytest
import torch

from strata.bench.gpu_kernels import QWEN3_8B, Product, run
from strata.bench.gpu_time import HEADER, Measurement, line
from strata.errors import HardwareError, OptionError


def test_a_product_is_read_as_it_is_written() -> None:
    for product in QWEN3_8B:
        assert Product.parse(str(product)) == product


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("int4:64x64", "OPERATION:DTYPE:ROWSxCOLS"),
        ("product:int4:64", "OPERATION:DTYPE:ROWSxCOLS"),
        ("divide:int4:64x64", "operations are product, add, gated"),
        ("product:int3:64x64", "dtypes int4, int8, mxfp4, bf16"),
        ("product:int4:64x40", "groups of 32"),
        ("gated:int4:96x64", "groups of 64"),
    ],
)
def test_what_is_no_product_is_refused(text: str, about: str) -> None:
    with pytest.raises(OptionError, match=about):
        Product.parse(text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(HardwareError, match="no NVIDIA GPU"):
        next(run(QWEN3_8B, [1]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("tokens", [1, 16])
def test_a_gpu_is_measured(tokens: int) -> None:
    (found,) = run([Product("gated", "int4", 2048, 2048)], [tokens])
    # It cannot have read the matrix faster than twice what memory allows: copies would come from the cache.
    assert 0 < found.share < 2


def test_lines_stand_under_their_heading() -> None:
    found = Measurement(str(QWEN3_8B[-1]), 32, 283.04e-6, 2.3e12, 141e12, 4.33e12)
    assert len(line(found)) == len(HEADER)
    assert line(found).endswith("32    283.04   2300   4330   0.53    141.0")
