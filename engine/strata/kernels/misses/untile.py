"""Experts from tiles, as host memory has them for the CPU, to blobs, as the card's kernels read them.

What is copied where is read on the device, so that a CUDA graph may hold the launch. Grid (PROGRAMS,): program p takes
the tiles p, p + PROGRAMS ... of all experts. A row block is 16 rows; a tile of it has 8 groups of 32 inputs:

    int4    d fp16 [16], dmin fp16 [16], minima u8 [8, 16], scales u8 [8, 16], words [8 * 4, 16 rows]
    int8    scales fp16 [8, 16], words [8 * 8, 16 rows], of codes + 128
    mxfp4   scales u8 [8, 16], words [8 * 4, 16 rows]
    bf16    words [8 * 16, 16 rows]

A word has 32 bits of a row. The last tile of a row may have fewer groups. Row blocks of gate and up lie in turn, those
of down behind them, then the biases as float32, each matrix filled up to whole row blocks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.experts.blob import BlobLayout, MatrixPlace
from strata.kernels.triton_functions import overlap_launches

# By format: bytes of a tile's header, and words of a row's group.
_HEADERS = {"int4": 320, "int8": 256, "mxfp4": 128, "bf16": 0}
_WORDS = {"int4": 4, "int8": 8, "mxfp4": 4, "bf16": 16}
PROGRAMS = 64  # a quarter of them fills PCIe 5.0; more queue there, before what the CPU has for the card
WARPS = 4


def untile(sources: Tensor, targets: Tensor, count: Tensor, layout: BlobLayout) -> None:
    """Write the first ``count`` [1] of the experts whose tiles lie at ``sources`` as blobs to ``targets``; all int64
    addresses that kernels of this device may read or write."""
    gate, up, down = layout.gate, layout.up, layout.down
    untile_kernel[(PROGRAMS,)](
        sources,
        targets,
        count,
        FORMAT=gate.kind,
        HEADER=_HEADERS[gate.kind],
        WORDS=_WORDS[gate.kind],
        GATE_ROWS=gate.rows,
        DOWN_ROWS=down.rows,
        GATE_GROUPS=gate.cols // 32,
        DOWN_GROUPS=down.cols // 32,
        GATE=_offsets(gate),
        UP=_offsets(up),
        DOWN=_offsets(down),
        BIASES=-1 if gate.bias is None else 0,
        NARROW=gate.bias_dtype == "BF16",
        num_warps=WARPS,
        **launch.early(),
    )


def _offsets(place: MatrixPlace) -> tuple[int, ...]:
    """Codes or the weight itself, scales, minima, superblocks' scales, bias; -1 where there are none."""
    parts = ("weight" if place.kind == "bf16" else "codes", "scales", "mins", "super")
    return (*(place.offsets.get(part, -1) for part in parts), -1 if place.bias is None else place.bias)


@triton.jit
def untile_kernel(
    sources_ptr,
    targets_ptr,
    count_ptr,
    FORMAT: tl.constexpr,
    HEADER: tl.constexpr,
    WORDS: tl.constexpr,
    GATE_ROWS: tl.constexpr,
    DOWN_ROWS: tl.constexpr,
    GATE_GROUPS: tl.constexpr,
    DOWN_GROUPS: tl.constexpr,
    GATE: tl.constexpr,
    UP: tl.constexpr,
    DOWN: tl.constexpr,
    BIASES: tl.constexpr,
    NARROW: tl.constexpr,
    EARLY: tl.constexpr,
):
    GATE_TILES: tl.constexpr = (GATE_GROUPS + 7) // 8
    DOWN_TILES: tl.constexpr = (DOWN_GROUPS + 7) // 8
    GATE_BLOCKS: tl.constexpr = (GATE_ROWS + 15) // 16
    DOWN_BLOCKS: tl.constexpr = (DOWN_ROWS + 15) // 16
    GATE_BYTES: tl.constexpr = GATE_TILES * HEADER + GATE_GROUPS * WORDS * 64
    DOWN_BYTES: tl.constexpr = DOWN_TILES * HEADER + DOWN_GROUPS * WORDS * 64
    DOWN_BEGIN: tl.constexpr = 2 * GATE_BLOCKS * GATE_BYTES
    BIAS_BEGIN: tl.constexpr = DOWN_BEGIN + DOWN_BLOCKS * DOWN_BYTES
    UPPER: tl.constexpr = 2 * GATE_BLOCKS * GATE_TILES  # tiles of gate and up
    TILES: tl.constexpr = UPPER + DOWN_BLOCKS * DOWN_TILES
    overlap_launches(EARLY)
    end = tl.load(count_ptr) * TILES
    number = tl.program_id(0)
    while number < end:
        source = tl.load(sources_ptr + number // TILES)
        target = tl.load(targets_ptr + number // TILES)
        which = number % TILES
        biases = source + BIAS_BEGIN
        if which < UPPER:
            block, tile = which // GATE_TILES, which % GATE_TILES
            tiles = source + block * GATE_BYTES
            row = block // 2 * 16
            if block % 2 == 0:
                _copy_tile(tiles, tile, target, row, GATE_ROWS, GATE_GROUPS, GATE, FORMAT, HEADER, WORDS)
                if BIASES >= 0:
                    _copy_bias(biases, tile, target + GATE[4], row, GATE_ROWS, NARROW)
            else:
                _copy_tile(tiles, tile, target, row, GATE_ROWS, GATE_GROUPS, UP, FORMAT, HEADER, WORDS)
                if BIASES >= 0:
                    _copy_bias(biases + GATE_BLOCKS * 64, tile, target + UP[4], row, GATE_ROWS, NARROW)
        else:
            block, tile = (which - UPPER) // DOWN_TILES, (which - UPPER) % DOWN_TILES
            tiles = source + DOWN_BEGIN + block * DOWN_BYTES
            _copy_tile(tiles, tile, target, block * 16, DOWN_ROWS, DOWN_GROUPS, DOWN, FORMAT, HEADER, WORDS)
            if BIASES >= 0:
                _copy_bias(biases + 2 * GATE_BLOCKS * 64, tile, target + DOWN[4], block * 16, DOWN_ROWS, NARROW)
        number += tl.num_programs(0)


@triton.jit
def _copy_tile(
    tiles,
    tile,
    target,
    first_row,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    OFFSETS: tl.constexpr,
    FORMAT: tl.constexpr,
    HEADER: tl.constexpr,
    WORDS: tl.constexpr,
):
    """A tile of one row block. All loads stand before the first store, which waits for its own: so a tile costs one
    way over PCIe and back, not one for each part."""
    INT4: tl.constexpr = FORMAT == "int4"
    SCALED: tl.constexpr = FORMAT != "bf16"
    SCALE: tl.constexpr = tl.int16 if FORMAT == "int8" else tl.uint8  # as wide as a scale is
    SCALES: tl.constexpr = 192 if INT4 else 0
    SUPERS: tl.constexpr = GROUPS // 8 if GROUPS >= 8 else 1
    lane = tl.arange(0, 16)
    row = first_row + lane
    real = row < ROWS
    word = tl.arange(0, 8 * WORDS)
    group = tl.arange(0, 8)
    begin = tl.multiple_of((tiles + tile * (HEADER + 512 * WORDS)).to(tl.pointer_type(tl.uint8)), 64)
    words_there = (tile * 8 * WORDS + word < GROUPS * WORDS)[:, None] & real[None, :]
    groups_there = (tile * 8 + group < GROUPS)[:, None] & real[None, :]
    super_there = real & (tile < SUPERS)
    from_words = (begin + HEADER).to(tl.pointer_type(tl.int32)) + word[:, None] * 16 + lane[None, :]
    from_groups = group[:, None] * 16 + lane[None, :]
    words = tl.load(from_words, mask=words_there, other=0)
    if SCALED:
        scales = tl.load((begin + SCALES).to(tl.pointer_type(SCALE)) + from_groups, mask=groups_there, other=0)
    if INT4:
        mins = tl.load(begin + 64 + from_groups, mask=groups_there, other=0)
        steps = begin.to(tl.pointer_type(tl.int16)) + lane
        scale_step = tl.load(steps, mask=super_there, other=0)
        min_step = tl.load(steps + 16, mask=super_there, other=0)
    if FORMAT == "int8":
        words ^= -0x7F7F7F80  # 0x80808080: codes + 128 back to codes
    to_words = (target + OFFSETS[0]).to(tl.pointer_type(tl.int32)) + row[None, :] * (GROUPS * WORDS)
    tl.store(to_words + tile * 8 * WORDS + word[:, None], words, mask=words_there)
    to_groups = row[None, :] * GROUPS + tile * 8 + group[:, None]
    if SCALED:
        tl.store((target + OFFSETS[1]).to(tl.pointer_type(SCALE)) + to_groups, scales, mask=groups_there)
    if INT4:
        tl.store((target + OFFSETS[2]).to(tl.pointer_type(tl.uint8)) + to_groups, mins, mask=groups_there)
        to_steps = (target + OFFSETS[3]).to(tl.pointer_type(tl.int16)) + (row * SUPERS + tile) * 2
        tl.store(to_steps, scale_step, mask=super_there)
        tl.store(to_steps + 1, min_step, mask=super_there)


@triton.jit
def _copy_bias(biases, tile, target, first_row, ROWS: tl.constexpr, NARROW: tl.constexpr):
    """Of a row block, with its first tile."""
    row = first_row + tl.arange(0, 16)
    mask = (row < ROWS) & (tile == 0)
    value = tl.load(biases.to(tl.pointer_type(tl.float32)) + row, mask=mask, other=0.0)
    if NARROW:
        tl.store(target.to(tl.pointer_type(tl.bfloat16)) + row, value.to(tl.bfloat16), mask=mask)
    else:
        tl.store(target.to(tl.pointer_type(tl.float32)) + row, value, mask=mask)
