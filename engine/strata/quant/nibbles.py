"""Two 4-bit codes a byte, in the one order that all of Strata's 4-bit formats share.

Within 8 consecutive codes of a row, byte j (0 .. 3) holds code j in its low and code j + 4 in its high half. A 32-bit
word is thus 8 codes, and one mask gives 4 consecutive ones in byte lanes, as dot-product instructions take them.
"""

from __future__ import annotations

from strata.quant.base import Tensor


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 [rows, cols] of values below 16 -> uint8 [rows, cols/2]; cols must be a multiple of 8."""
    rows, cols = codes.shape
    halves = codes.view(rows, cols // 8, 2, 4)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).view(rows, cols // 2)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """The inverse of ``pack_nibbles``: uint8 [rows, cols/2] -> uint8 [rows, cols]."""
    import torch

    rows, half = packed.shape
    words = packed.view(rows, half // 4, 4)
    return torch.stack([words & 15, words >> 4], dim=2).view(rows, 2 * half)
