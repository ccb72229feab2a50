"""int4 packed by each variant of the native library, against the rule in torch."""

from __future__ import annotations

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from strata import quant
from strata.native.library import VARIANTS, variants
from strata.native.pack import pack_int4
from strata.quant import int4, int4_native
from strata.quant.base import QuantizedTensor

FORM = quant.get("int4")
DTYPES = {"U8": torch.uint8, "F16": torch.float16}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in variants():
        pytest.skip(f"this CPU has no {name}")
    return name


def native(weight: torch.Tensor, variant: str) -> QuantizedTensor:
    rows, cols = weight.shape
    parts = {name: torch.empty(part.shape, dtype=DTYPES[part.dtype]) for name, part in FORM.parts(rows, cols).items()}
    number = str(weight.dtype).removeprefix("torch.")
    places = {name: tensor.data_ptr() for name, tensor in parts.items()}
    pack_int4(weight.data_ptr(), number, rows, cols, places, variant=variant)
    return QuantizedTensor("int4", (rows, cols), parts)


def gguf(kind: GGMLQuantizationType) -> torch.Tensor:
    return torch.from_numpy(dequantize(quantize((torch.randn(32, 512) * 0.02).numpy(), kind), kind).copy())


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "normal": torch.randn(32, 2048) * 0.02,
        "the last superblock has 10 groups": torch.randn(32, 576) * 0.02,
        "less than a superblock": torch.randn(32, 96) * 0.02,
        "fp16 scales are subnormal": torch.randn(32, 512) * 1e-5,
        "far from zero": torch.rand(32, 512) + 0.5,
        "far below zero": -torch.rand(32, 512) - 0.5,
        "heavy tails": torch.distributions.StudentT(4.0).sample(torch.Size((32, 512))) * 0.02,
        "large": torch.randn(32, 512) * 1e5,
        "on a grid of 3 levels": torch.randint(-1, 2, (32, 512)).float() * 0.03,
        "on a grid of 16 levels (Q4_1)": gguf(GGMLQuantizationType.Q4_1),
        "on a grid of 256 levels (Q8_0)": gguf(GGMLQuantizationType.Q8_0),
    }


@pytest.mark.parametrize("what", weights())
def test_the_error_is_that_of_the_rule(variant: str, what: str) -> None:
    weight = weights()[what]
    wanted = FORM.unpack(QuantizedTensor("int4", (weight.shape[0], weight.shape[1]), int4.pack_reference(weight)))
    error = (FORM.unpack(native(weight, variant)) - weight).square().sum(-1)
    wanted_error = (wanted - weight).square().sum(-1)
    # Where two choices are as good, sums in another order may prefer the other one.
    assert (error <= 1.02 * wanted_error + 1e-9 * weight.square().sum(-1)).all()
    assert error.sum() <= 1.002 * wanted_error.sum() + 1e-12 * weight.square().sum()


def test_the_bits_are_those_of_the_rule(variant: str) -> None:
    weight = torch.randn(64, 576) * 0.02
    parts = native(weight, variant).parts
    for name, wanted in int4.pack_reference(weight).items():
        assert (parts[name] != wanted).float().mean() < 0.002, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_are_taken_as_they_are(variant: str, dtype: torch.dtype) -> None:
    narrow = (torch.randn(16, 512) * 0.02).to(dtype)
    narrow[0, :4] = torch.tensor([1e-7, -1e-7, 0.0, -0.0]).to(dtype)  # subnormal in fp16
    for name, part in native(narrow, variant).parts.items():
        assert torch.equal(part, native(narrow.float(), variant).parts[name]), name


def test_zeros_are_zeros(variant: str) -> None:
    assert not FORM.unpack(native(torch.zeros(4, 288), variant)).any()


def test_the_library_packs_for_the_store_on_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(600, 2048) * 0.02
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    packed = FORM.pack(weight[:, ::2].double())
    for name, part in native(weight[:, ::2].contiguous(), variants()[-1]).parts.items():
        assert torch.equal(packed.parts[name], part), name


def test_torch_packs_where_the_library_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(4, 64)
    monkeypatch.setattr(int4_native, "is_available", lambda: False)
    for name, part in int4.pack_reference(weight).items():
        assert torch.equal(FORM.pack(weight).parts[name], part), name
