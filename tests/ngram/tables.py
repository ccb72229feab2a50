"""Tiny tables on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from strata.store.encode import encode_pages
from strata.store.shard import write_shard
from strata.store.sources.base import WHOLE, SourceTensor
from strata.store.tables import TableLayout

NAME = "model.layers.0.ple.ple_embedding.ngram_embedding.weight"


class OneTable:
    """A source that has nothing but a table."""

    origin = "here"

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows
        self.tensors = {NAME: SourceTensor(tuple(rows.shape), "BF16")}
        self.most = 0  # rows that were read at a time

    def read(self, name: str, rows: slice = WHOLE) -> torch.Tensor:
        assert name == NAME
        self.most = max(self.most, len(self._rows[rows]))
        return self._rows[rows]


def random_rows(num_rows: int, dim: int) -> torch.Tensor:
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(num_rows)).bfloat16()


def write_table(root: Path, rows: torch.Tensor, *, pages_per_shard: int = 3) -> TableLayout:
    num_rows, dim = rows.shape
    layout = TableLayout(NAME, 1, num_rows, dim, pages_per_shard)
    source: Any = OneTable(rows)
    for index, file in enumerate(layout.files):
        write_shard(root, file, encode_pages(source, layout, index))
    return layout
