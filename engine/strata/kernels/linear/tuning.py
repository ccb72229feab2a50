"""Launch parameters of the products, by measurement on one H200 (2026-11-30): replays of a CUDA graph over more weights
than its cache holds, each launch overlapping with the one before.

A launch is looked up by its shape, else it follows a rule that fits the measured ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.kernels.launch import capability

# With more rows x, weights are unpacked before the product, by a kernel of its own, for cuBLAS. 24576 x 4096 in int4:
# 128 rows 124 us unpacked within, 56 us by cuBLAS after about 70 of unpacking; 256 rows 194 against 75 + 70.
MAX_UNPACKED_ROWS = 128


@dataclass(frozen=True, slots=True)
class FewRows:
    """warps of a program, rows of W that each of them sums up, tiles of each row that are read ahead; registers that a
    thread may have at most, where the compiler would take so many that fewer programs share a core."""

    warps: int
    rows: int
    tiles: int
    registers: int | None = None


# (rows, cols) of W in int4, whose product is not gated, and one row x. Microseconds, share of 4.24 TB/s.
MEASURED = {
    (6144, 4096): FewRows(4, 2, 2),  # Qwen3-8B qkv: 4.5, 76 %
    (4096, 4096): FewRows(16, 1, 4),  # o: 3.9, 59 %
    (4096, 12288): FewRows(16, 1, 4),  # down: 10.1, 68 %
    (5120, 2048): FewRows(8, 4, 2),  # Qwen3-30B-A3B qkv: 2.5, 58 %
    (2048, 4096): FewRows(8, 1, 4),  # o: 2.7, 43 %
}


def few_rows(rows: int, cols: int, tokens: int, gated: bool) -> FewRows:
    """``tokens``: 1, 2, 4 or 8. A program of a gated product has the 32 rows of a group."""
    if gated:  # 24576 x 4096, one row: 17.1 us, 80 %
        return FewRows(8, 4, 2) if tokens == 1 else FewRows(16, 2, 1) if tokens >= 4 else FewRows(32, 1, 1)
    if tokens == 1:  # int8, 151936 x 4096: 148 us, 105 %
        return MEASURED.get((rows, cols), FewRows(8, 1, 4))
    return FewRows(8, 2, 1) if tokens >= 4 else FewRows(8, 1, 2)


@dataclass(frozen=True, slots=True)
class ManyRows:
    """A block of the product; parts of the columns; warps of a program; steps over the columns that are read ahead."""

    block_tokens: int
    block_rows: int
    block_cols: int
    splits: int
    warps: int
    stages: int


PROGRAMS = 256  # at least, where the columns can be split: an H200 has 132 cores, which hold two or three each


def many_rows(kind: str, rows: int, tokens: int) -> ManyRows:
    """32 rows x of Qwen3-8B: qkv 18.0, o 10.9, gate and up 51, down 31 microseconds, 19 to 27 % of 4.24 TB/s."""
    block_tokens = next(size for size in (16, 32, 64, 128) if tokens <= size or size == 128)
    blocks = -(-rows // 64) * -(-tokens // block_tokens)
    splits = next(parts for parts in (1, 2, 4, 8) if parts * blocks >= PROGRAMS or parts == 8)
    wide = capability() >= (9, 0) and block_tokens <= 64 and kind != "int8"
    return ManyRows(block_tokens, 64, 256 if wide else 128, splits, 4, 3)
