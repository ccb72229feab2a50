"""What a second format does to weights that were rounded once: 4-bit grids survive int4, Q8_0 survives int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from strata import quant
from strata.quant.nibbles import unpack_nibbles
from tests.store import packing

ROWS, COLS = 128, 1024
WEIGHT = torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(0)) * 0.02


def integers(**rounding: Any) -> torch.Tensor:
    return packing.rounded(WEIGHT, **rounding).numbers()


def ggml(kind: str) -> torch.Tensor:
    stored = gguf.GGMLQuantizationType[kind]
    data = packing.q4_k(WEIGHT)[0] if kind == "Q4_K" else gguf.quants.quantize(WEIGHT.numpy(), stored)
    return torch.from_numpy(gguf.quants.dequantize(data, stored)).view(ROWS, COLS)


def fp8(block: int) -> torch.Tensor:
    blocks = WEIGHT.view(ROWS // block, block, COLS // block, block)
    scales = blocks.abs().amax((1, 3), keepdim=True) / 448
    return ((blocks / scales).to(torch.float8_e4m3fn).float() * scales).view(ROWS, COLS)


def mxfp4() -> torch.Tensor:
    return quant.get("mxfp4").unpack(quant.get("mxfp4").pack(WEIGHT))


# By source: its numbers, and bounds on the relative error of int4 and int8 against them.
SOURCES: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
    "AWQ": (lambda: integers(group=128), 0.004, 0.006),
    "GPTQ": (lambda: integers(group=128), 0.004, 0.006),
    "GPTQ, symmetric": (lambda: integers(group=128, symmetric=True), 0.004, 0.006),
    "GPTQ, groups of 32": (lambda: integers(group=32), 0.004, 0.006),
    "compressed-tensors int4, a scale a row": (lambda: integers(group=COLS, symmetric=True), 0.004, 0.006),
    "GGUF Q4_0": (lambda: ggml("Q4_0"), 0.004, 0.006),
    "GGUF Q4_1": (lambda: ggml("Q4_1"), 0.004, 0.006),
    "GGUF Q4_K": (lambda: ggml("Q4_K"), 0.004, 0.006),
    # Here 16 levels of a group of 32 cannot hold what the source has.
    "GPTQ, act-order": (
        lambda: integers(group=128, order=np.random.default_rng(0).permutation(COLS)),
        0.070,
        0.006,
    ),
    "GPTQ, 8 bits": (lambda: integers(group=128, bits=8), 0.073, 0.006),
    "compressed-tensors int8, a scale a row": (lambda: integers(group=COLS, bits=8, symmetric=True), 0.073, 0.006),
    "GGUF Q5_0": (lambda: ggml("Q5_0"), 0.072, 0.006),
    "GGUF Q5_1": (lambda: ggml("Q5_1"), 0.068, 0.006),
    "GGUF Q8_0": (lambda: ggml("Q8_0"), 0.073, 0.0),
    "FP8, blocks of 128": (lambda: fp8(128), 0.073, 0.006),
    "MXFP4": (mxfp4, 0.071, 0.0062),  # if it were not kept
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_error_is_within_its_bound(name: str) -> None:
    numbers, int4, int8 = SOURCES[name]
    source = numbers()
    for kind, bound in (("int4", int4), ("int8", int8)):
        form = quant.get(kind)
        assert float((form.unpack(form.pack(source)) - source).norm() / source.norm()) <= bound, kind
    assert 1e-3 < float((source - WEIGHT).norm() / WEIGHT.norm()) < 0.17  # it is rounded, and still the same weight


def q4_k_codes() -> tuple[torch.Tensor, torch.Tensor]:
    return ggml("Q4_K"), packing.q4_k(WEIGHT)[1]


def integer_codes(**rounding: Any) -> tuple[torch.Tensor, torch.Tensor]:
    groups = packing.rounded(WEIGHT, **rounding)
    return groups.numbers(), torch.from_numpy(groups.codes)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: integer_codes(group=128), id="AWQ and GPTQ"),
        pytest.param(lambda: integer_codes(group=128, symmetric=True), id="GPTQ, symmetric"),
        pytest.param(lambda: integer_codes(group=COLS, symmetric=True), id="a scale a row"),
        pytest.param(q4_k_codes, id="Q4_K"),
    ],
)
def test_int4_rounds_no_code_of_a_4_bit_source(made: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    numbers, source = made()
    found = unpack_nibbles(quant.get("int4").pack(numbers).parts["codes"]).long().view(ROWS, -1, 32)
    source = source.long().view(ROWS, -1, 32)
    # Codes of a group may move together, and a group that uses few of them may use every second or third.
    low = source.argmin(-1, keepdim=True)
    high = source.argmax(-1, keepdim=True)

    def above_low(codes: torch.Tensor) -> torch.Tensor:
        return codes - codes.gather(-1, low)

    theirs, ours = above_low(source), above_low(found)
    assert torch.equal(ours * theirs.gather(-1, high), theirs * ours.gather(-1, high))
    assert bool((ours.gather(-1, high) >= theirs.gather(-1, high)).all())
