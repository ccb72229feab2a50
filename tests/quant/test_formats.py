"""Every bit format: what it stores, how exactly, and in how many bytes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from strata import quant
from strata.errors import OptionError
from strata.quant import base

TORCH_DTYPES = {"U8": torch.uint8, "I8": torch.int8, "F16": torch.float16, "BF16": torch.bfloat16}

SHAPES = [
    (3, 32),  # one group, and a superblock that is mostly empty
    (5, 96),  # less than one superblock
    (4, 256),  # exactly one
    (4, 288),  # one, and a group more, which joins it
    (7, 576),  # SmolLM2's width: two superblocks of 8 and 10 groups
    (2, 2048),
]


def normal(rows: int, cols: int, *, std: float = 0.02, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)) * std


def relative_error(name: str, weight: torch.Tensor) -> float:
    form = quant.get(name)
    return float((form.unpack(form.pack(weight)) - weight).norm() / weight.norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", sorted(quant.FORMATS))
def test_parts_are_as_announced(name: str, shape: tuple[int, int]) -> None:
    form = quant.get(name)
    packed = form.pack(normal(*shape))
    announced = form.parts(*shape)
    assert packed.format == name
    assert packed.shape == shape
    assert list(packed.parts) == list(announced)
    for part, tensor in packed.parts.items():
        assert tuple(tensor.shape) == announced[part].shape
        assert tensor.dtype == TORCH_DTYPES[announced[part].dtype]
    assert packed.num_bytes == form.num_bytes(*shape)
    assert form.unpack(packed).shape == shape
    assert form.unpack(packed).dtype == torch.float32


@pytest.mark.parametrize("cols", [256, 288, 480, 512, 576, 1536, 14336])
def test_int4_takes_at_most_4_63_bits(cols: int) -> None:
    assert quant.get("int4").num_bytes(1, cols) * 8 / cols <= 4.63


@pytest.mark.parametrize("name", ["int8", "int4", "mxfp4"])
def test_rows_that_do_not_divide_into_groups_are_not_accepted(name: str) -> None:
    assert not quant.get(name).accepts(4, 48)
    assert quant.get(name).accepts(4, 64)
    assert quant.get("bf16").accepts(4, 48)


@pytest.mark.parametrize(
    ("name", "bound"),
    # measured: 0.0017, 0.0053, 0.0715, 0.1141
    [("bf16", 0.002), ("int8", 0.0055), ("int4", 0.0725), ("mxfp4", 0.116)],
)
def test_error_on_normal_weights(name: str, bound: float) -> None:
    assert relative_error(name, normal(512, 2048)) < bound


@pytest.mark.parametrize("std", [1e-4, 1e-2, 1.0, 1e3])
def test_error_does_not_depend_on_the_scale(std: float) -> None:
    # 1e-4 puts the fp16 scales of int4 among the subnormal numbers.
    assert relative_error("int8", normal(64, 1024, std=std)) < 0.008
    assert relative_error("int4", normal(64, 1024, std=std)) < 0.080


def test_int4_beats_the_plain_range_of_each_group() -> None:
    weight = normal(256, 1024)
    groups = weight.view(256, 32, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = ((groups - low) / step).round() * step + low
    plain_error = float((plain - groups).norm() / groups.norm())
    # Although its scales and minima have 8 bits and the plain ones have 32.
    assert relative_error("int4", weight) < 0.93 * plain_error


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("Q4_0", 0.006), ("Q4_1", 0.005)],  # values on a 16-level grid: only the 8-bit scales and minima add error
)
def test_int4_keeps_weights_that_are_4_bit_already(kind: str, bound: float) -> None:
    ggml_type = GGMLQuantizationType[kind]
    weight = torch.from_numpy(dequantize(quantize(normal(128, 1024).numpy(), ggml_type), ggml_type))
    assert relative_error("int4", weight) < bound


@pytest.mark.parametrize("levels", [1, 2, 11, 15])
@pytest.mark.parametrize("rounded", [False, True], ids=["exact", "in bf16"])
def test_int4_finds_the_grid_of_any_4_bit_weights(levels: int, rounded: bool) -> None:
    # Groups need not use all 16 levels: then the range does not tell the step (GGUF Q4_K, GPTQ, ternary models).
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, levels + 1, (64, 16, 32), generator=generator).float()
    step = 0.01 * (0.5 + torch.rand(64, 16, 1, generator=generator))
    weight = ((codes - levels / 2) * step).view(64, 512)
    if rounded:
        weight = weight.bfloat16().float()
    assert relative_error("int4", weight) < 0.006


def test_int8_keeps_q8_0_exactly() -> None:
    kind = GGMLQuantizationType.Q8_0
    weight = torch.from_numpy(dequantize(quantize(normal(64, 512).numpy(), kind), kind))
    form = quant.get("int8")
    assert torch.equal(form.unpack(form.pack(weight)), weight)


@pytest.mark.parametrize("shape", SHAPES)
def test_int4_unpacks_by_its_formula(shape: tuple[int, int]) -> None:
    rows, cols = shape
    random = np.random.default_rng(0)
    n_super = max(1, cols // 256)
    codes = random.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    scales = random.integers(0, 256, (rows, cols // 32), dtype=np.uint8)
    mins = random.integers(0, 256, (rows, cols // 32), dtype=np.uint8)
    supers = random.normal(size=(rows, n_super, 2)).astype(np.float16)
    expected = np.empty(shape, dtype=np.float32)
    for r in range(rows):
        for c in range(cols):
            byte = codes[r, c // 8 * 4 + c % 4]
            code = byte >> 4 if c % 8 >= 4 else byte & 15
            group = c // 32
            d, dmin = supers[r, min(group // 8, n_super - 1)].astype(np.float32)
            expected[r, c] = d * scales[r, group] * code - dmin * mins[r, group]
    parts = {"codes": codes, "scales": scales, "mins": mins, "super": supers}
    packed = quant.QuantizedTensor("int4", shape, {name: torch.from_numpy(part) for name, part in parts.items()})
    torch.testing.assert_close(quant.get("int4").unpack(packed), torch.from_numpy(expected), rtol=1e-6, atol=1e-4)


def test_int4_groups_above_zero_take_a_negative_dmin() -> None:
    weight = normal(8, 512).abs() + 1.0
    packed = quant.get("int4").pack(weight)
    assert (packed.parts["super"][..., 1] < 0).all()
    assert relative_error("int4", weight) < 0.005


def test_int4_codes_a_group_above_zero_from_zero_beside_ones_below() -> None:
    weight = normal(1, 256, std=1.0)
    weight[:, 64:96] = weight[:, 64:96].abs() + 1.0
    packed = quant.get("int4").pack(weight)
    assert packed.parts["mins"][0, 2] == 0
    assert (packed.parts["super"][..., 1] > 0).all()
    error = (quant.get("int4").unpack(packed) - weight)[:, 64:96].abs().max()
    assert error <= weight[:, 64:96].max() / 15 * 0.6  # half a step of the range from zero, and the scale's rounding


@pytest.mark.parametrize(
    ("value", "bound"),
    [(0.0, 0), (0.5, 2e-3), (-0.5, 2e-3), (3e4, 2e-3), (1e-6, 2e-2)],  # the scale of the last one is subnormal in fp16
)
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_constant_weights(name: str, value: float, bound: float) -> None:
    form = quant.get(name)
    result = form.unpack(form.pack(torch.full((2, 288), value)))
    torch.testing.assert_close(result, torch.full((2, 288), value), rtol=bound, atol=0)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_weights_below_fp16_become_zero(name: str) -> None:
    form = quant.get(name)
    assert torch.equal(form.unpack(form.pack(torch.full((2, 288), 1e-30))), torch.zeros(2, 288))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_values_beyond_fp16_stay_finite(name: str) -> None:
    form = quant.get(name)
    assert torch.isfinite(form.unpack(form.pack(normal(2, 256, std=1e9)))).all()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_an_outlier_spoils_its_own_group_only(name: str) -> None:
    weight = normal(1, 512)
    form = quant.get(name)
    before = form.unpack(form.pack(weight))
    spoilt = weight.clone()
    spoilt[0, 300] = 10.0
    after = form.unpack(form.pack(spoilt))
    assert torch.equal(before[:, :256], after[:, :256])  # the first superblock
    assert after[0, 300] == pytest.approx(10.0, rel=0.01)


def test_rows_do_not_depend_on_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal(37, 320)
    whole = quant.get("int4").pack(weight)
    monkeypatch.setattr(base, "_CHUNK_WEIGHTS", 320 * 5)
    pieces = quant.get("int4").pack(weight)
    for part, tensor in whole.parts.items():
        assert torch.equal(tensor, pieces.parts[part])


def test_packing_takes_any_float_type() -> None:
    weight = normal(16, 256).bfloat16()
    for name in quant.FORMATS:
        wide, narrow = quant.get(name).pack(weight.float()), quant.get(name).pack(weight)
        for part, tensor in wide.parts.items():
            assert torch.equal(tensor, narrow.parts[part])


def test_int4_refuses_what_are_no_whole_groups() -> None:
    with pytest.raises(AssertionError, match="250 columns are no whole groups of 32"):
        quant.get("int4").pack(normal(64, 250))


def test_packing_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    quant.get("int8").pack(normal(64, 256))
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError):
        quant.get("int8").pack(normal(64, 250))  # not a multiple of 32: cannot be cut into groups
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", ["fp8", "mxfp4"])
def test_what_is_no_target_names_those_that_are(name: str) -> None:
    with pytest.raises(OptionError, match=rf"'{name}' is unknown; one of bf16, int8, int4 is needed"):
        quant.target(name)


def test_mxfp4_unpacks_every_code_and_scale_by_its_formula() -> None:
    numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (253, 32), dtype=np.uint8)
    scales = np.stack([np.arange(253), random.permutation(253)], axis=1).astype(np.uint8)
    expected = np.empty((253, 64))
    for r in range(253):
        for c in range(64):
            byte = codes[r, c // 8 * 4 + c % 4]
            code = byte >> 4 if c % 8 >= 4 else byte & 15
            expected[r, c] = numbers[code & 7] * (-1.0 if code & 8 else 1.0) * 2.0 ** (int(scales[r, c // 32]) - 127)
    parts = {"codes": torch.from_numpy(codes), "scales": torch.from_numpy(scales)}
    found = quant.get("mxfp4").unpack(quant.QuantizedTensor("mxfp4", (253, 64), parts))
    assert np.array_equal(found.numpy().astype(np.float64), expected)
    assert found.isfinite().all()


def test_mxfp4_comes_back_exactly() -> None:
    form = quant.get("mxfp4")
    once = form.unpack(form.pack(normal(64, 512)))
    assert torch.equal(form.unpack(form.pack(once)), once)
    assert torch.equal(form.unpack(form.pack(once.bfloat16())), once)  # as checkpoints that were widened hold them


def test_mxfp4_rounds_as_the_library_does() -> None:
    kind = GGMLQuantizationType.MXFP4
    weight = normal(64, 512)
    theirs = torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
    form = quant.get("mxfp4")
    assert torch.equal(form.unpack(form.pack(weight)), theirs)


def test_mxfp4_takes_half_way_numbers_to_the_even_code_and_cuts_off_above_6() -> None:
    weight = torch.zeros(1, 32)
    weight[0, :12] = torch.tensor([7.9, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.75, -5.0, 0.26, -2.4])
    form = quant.get("mxfp4")
    expected = [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -1.0, -4.0, 0.5, -2.0]
    assert form.unpack(form.pack(weight))[0, :12].tolist() == expected


@pytest.mark.parametrize("size", [3e38, 1e-38, 1e-45])
def test_mxfp4_reaches_as_far_as_float32(size: float) -> None:
    form = quant.get("mxfp4")
    found = form.unpack(form.pack(torch.full((1, 32), size)))
    assert found.isfinite().all()
    assert float((found / size).sub(1).abs().max()) <= (0.34 if size > 1e-40 else 1)


@pytest.mark.parametrize("room", ["strata.quant", "strata.store", "strata.store.convert"])
def test_import_stays_light(room: str) -> None:
    heavy = "{'torch', 'numpy', 'gguf', 'safetensors', 'tokenizers', 'xxhash'}"
    code = f"import sys, {room}; found = {heavy} & set(sys.modules); sys.exit(f'imported {{found}}' if found else 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
