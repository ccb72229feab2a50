"""The host's copy of block tables that a card has: written where they change, so that a step seldom sends them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class BlockTables:
    """int32 [rows, width] of KV blocks, for sequences of up to ``max_model_len`` tokens."""

    def __init__(self, num_rows: int, max_model_len: int, block_size: int) -> None:
        self.width = -(-max_model_len // block_size)
        self._tables = np.zeros((num_rows, self.width), dtype=np.int32)
        self._written: list[tuple[int, ...]] = [()] * num_rows  # the blocks of each row

    @property
    def row_bytes(self) -> int:
        return 4 * self.width

    @property
    def num_bytes(self) -> int:
        return self._tables.nbytes

    def write(self, rows: Sequence[tuple[int, ...]]) -> bool:
        """Bring the first rows up to date; False if nothing changed."""
        changed = False
        for row, blocks in enumerate(rows):
            if blocks is not self._written[row]:
                self._tables[row, : len(blocks)] = blocks
                self._written[row] = blocks
                changed = True
        return changed

    def first(self, num_rows: int) -> npt.NDArray[np.int32]:
        """The first rows, one behind the other."""
        return self._tables[:num_rows].reshape(-1)
