"""The tiles of an expert: against the reference, and back without a loss."""

from __future__ import annotations

import ctypes

import pytest
import torch

from strata import quant
from strata.native.layout import FORMATS, TileLayout
from strata.native.library import LayoutArguments, load
from strata.native.reference import tile_rows
from strata.native.tiles import tile_expert, untile_expert
from tests.native.experts import Expert, aligned

SHAPES = [
    pytest.param(256, 64, id="whole tiles, a tile of two groups"),
    pytest.param(576, 96, id="SmolLM2's width: the last superblock has 10 groups"),
    pytest.param(32, 32, id="one group"),
    pytest.param(544, 288, id="rows and inputs that are no whole tiles"),
    pytest.param(2880, 32, id="gpt-oss' width"),
]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(("hidden", "intermediate"), SHAPES)
def test_tiles_are_as_the_reference_has_them(format_: str, hidden: int, intermediate: int) -> None:
    layout = TileLayout(format_, hidden, intermediate)
    expert = Expert.random(layout, seed=1)
    blob = expert.tiles()

    def matrix(name: str) -> torch.Tensor:
        parts = {
            "weight" if key == f"{name}.weight" else key.rpartition(".")[2]: value
            for key, value in expert.parts.items()
            if key.startswith(name)
        }
        return tile_rows(format_, parts)

    gate, up, down = (matrix(f"{name}_proj") for name in ("gate", "up", "down"))
    assert gate.shape == (layout.gate_blocks, layout.gate_block_bytes)
    assert down.shape == (layout.down_blocks, layout.down_block_bytes)
    assert torch.equal(blob, torch.cat([torch.stack([gate, up], 1).flatten(), down.flatten()]))


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(("hidden", "intermediate"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_tiles_come_back_as_the_parts_that_they_were(format_: str, hidden: int, intermediate: int, bias: bool) -> None:
    layout = TileLayout(format_, hidden, intermediate, bias)
    expert = Expert.random(layout, seed=2)
    assert set(expert.parts) == set(layout.parts)
    blob = expert.tiles()
    back = {name: torch.full_like(tensor, 77) for name, tensor in expert.parts.items()}
    untile_expert(layout, blob.data_ptr(), {name: tensor.data_ptr() for name, tensor in back.items()})
    for name, tensor in expert.parts.items():
        assert torch.equal(back[name], tensor), name


def test_widths_that_are_no_groups_are_for_bf16_alone() -> None:
    layout = TileLayout("bf16", 40, 24)
    expert = Expert.random(layout, seed=3)
    blob = expert.tiles()
    back = {name: torch.zeros_like(tensor) for name, tensor in expert.parts.items()}
    untile_expert(layout, blob.data_ptr(), {name: tensor.data_ptr() for name, tensor in back.items()})
    assert all(torch.equal(back[name], tensor) for name, tensor in expert.parts.items())
    with pytest.raises(AssertionError, match="does not divide into groups"):
        TileLayout("int4", 40, 24)


def test_biases_in_bf16_are_widened_and_come_back() -> None:
    layout = TileLayout("mxfp4", 64, 32, bias=True)
    expert = Expert.random(layout, seed=4)
    narrow = {name: tensor.bfloat16() if name.endswith(".bias") else tensor for name, tensor in expert.parts.items()}
    wide = {name: tensor.float() if name.endswith(".bias") else tensor for name, tensor in narrow.items()}
    blobs = [aligned(layout.num_bytes).zero_() for _ in range(2)]
    for blob, parts in zip(blobs, (narrow, wide), strict=True):
        addresses = {name: tensor.data_ptr() for name, tensor in parts.items()}
        tile_expert(layout, addresses, blob.data_ptr(), narrow_biases=parts is narrow)
    assert torch.equal(*blobs)
    back = {name: torch.zeros_like(tensor) for name, tensor in narrow.items()}
    addresses = {name: tensor.data_ptr() for name, tensor in back.items()}
    untile_expert(layout, blobs[0].data_ptr(), addresses, narrow_biases=True)
    assert all(torch.equal(back[name], tensor) for name, tensor in narrow.items())


def test_an_int4_tile_has_37_cache_lines() -> None:
    layout = TileLayout("int4", 2048, 768)
    assert layout.gate_block_bytes == 8 * 37 * 64
    assert layout.num_bytes * 8 == 3 * 2048 * 768 * 4.625


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("bias", [False, True])
def test_python_and_the_library_agree_on_sizes(format_: str, bias: bool) -> None:
    for hidden, intermediate in ((2048, 768), (2880, 2880), (576, 1536), (96, 160)):
        layout = TileLayout(format_, hidden, intermediate, bias)
        assert load().strata_expert_bytes(ctypes.byref(LayoutArguments.of(layout))) == layout.num_bytes


def test_tiles_hold_the_formats_of_the_store() -> None:
    assert set(FORMATS) == set(quant.FORMATS)
    for name in FORMATS:
        parts = quant.get(name).parts(64, 64)
        weight = {f"gate_proj.weight{'' if part == 'weight' else f'.{part}'}" for part in parts}
        assert weight == {part for part in TileLayout(name, 64, 64).parts if part.startswith("gate_proj")}
