"""Tiles of an expert back to its blob: the bytes that the tiles were made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strata import quant
from strata.experts.layout import blob_layout
from strata.native.layout import TileLayout
from strata.native.tiles import tile_expert
from strata.plan.shape import Role, TensorSpec
from strata.store.layout import ExpertLayout
from tests.kernels.conftest import Machine
from tests.kernels.misses_cases import call_untile


def make_layout(kind: str, hidden: int, intermediate: int, bias: bool) -> ExpertLayout:
    inward, outward = (intermediate, hidden), (hidden, intermediate)
    shapes = {"gate_proj": inward, "up_proj": inward, "down_proj": outward}
    specs, formats = [], {}
    for name, shape in shapes.items():
        specs.append(TensorSpec(f"model.layers.0.mlp.experts.0.{name}.weight", shape, Role.EXPERT, (0, 0)))
        formats[f"{name}.weight"] = kind
        if bias:
            specs.append(TensorSpec(f"model.layers.0.mlp.experts.0.{name}.bias", shape[:1], Role.VECTOR, (0, 0)))
            formats[f"{name}.bias"] = "bf16"
    layout = ExpertLayout.of(specs, formats, 1, origin="a test")
    assert layout is not None
    return layout


def make_blob(layout: ExpertLayout, kind: str) -> Tensor:
    """Real weights, so that superblocks and biases are numbers."""
    blob = torch.zeros(layout.blob_bytes, dtype=torch.uint8)
    for name, weight in layout.weights.items():
        parts = {name: torch.randn(weight.shape).bfloat16()}
        if not weight.is_plain:
            packed = quant.get(kind).pack(torch.randn(weight.shape))
            parts = {f"{name}.{part}": tensor for part, tensor in packed.parts.items()}
        for part, tensor in parts.items():
            data = tensor.contiguous().view(-1).view(torch.uint8)
            at, _ = layout.parts[part]
            blob[at : at + len(data)] = data
    return blob


def tiles_of(blob: Tensor, layout: ExpertLayout, tiles: TileLayout) -> Tensor:
    memory = torch.zeros(tiles.num_bytes + 64, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64
    parts = {part: blob.data_ptr() + layout.parts[part][0] for part in tiles.parts}
    tile_expert(tiles, parts, memory.data_ptr() + begin, narrow_biases=True)
    return memory[begin : begin + tiles.num_bytes]


@pytest.mark.parametrize(
    ("kind", "hidden", "intermediate", "bias"),
    [
        pytest.param("int4", 256, 32, False, id="whole tiles"),
        pytest.param("int4", 352, 64, False, id="a last tile of three groups, whose superblock is the one before"),
        pytest.param("int4", 64, 32, True, id="fewer inputs than a tile, biases"),
        pytest.param("mxfp4", 320, 96, True, id="mxfp4 with biases"),
        pytest.param("int8", 352, 64, False, id="int8, a last tile of three groups"),
        pytest.param("int8", 64, 320, True, id="int8 with biases"),
        pytest.param("bf16", 352, 64, False, id="bf16, a last tile of three groups"),
        pytest.param("bf16", 64, 320, True, id="bf16 with biases"),
    ],
)
def test_bytes_come_back(machine: Machine, kind: str, hidden: int, intermediate: int, bias: bool) -> None:
    torch.manual_seed(0)
    layout = make_layout(kind, hidden, intermediate, bias)
    tile_layout = TileLayout(kind, hidden, intermediate, bias)
    blobs = [make_blob(layout, kind) for _ in range(3)]
    tiles = [tiles_of(blob, layout, tile_layout).to(machine.device) for blob in blobs]
    found = machine.call(call_untile, tiles, blob_layout(layout), 2).cpu()
    for blob, result in zip(blobs[:2], found[:2], strict=True):
        for part, (at, spec) in layout.parts.items():
            size = _part_bytes(layout, part)
            assert torch.equal(result[at : at + size], blob[at : at + size]), (part, spec)
    assert (found[2] == 0xEE).all()


def _part_bytes(layout: ExpertLayout, part: str) -> int:
    from strata.store.layout import part_bytes

    return part_bytes(layout.parts[part][1])
