"""Tables of n-gram embeddings, as a model reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Pending(Protocol):
    """Rows that are on their way."""

    def wait(self) -> Tensor:
        """[tokens, heads * dim] in the compute dtype on the compute device."""
        ...


class NGramTable(Protocol):
    """Rows by their numbers, wherever they lie."""

    def begin(self, ids: Tensor) -> Pending:
        """Ask for rows, int64 [tokens, heads]."""
        ...


@dataclass(frozen=True, slots=True)
class Ready:
    """Rows that are there."""

    rows: Tensor

    def wait(self) -> Tensor:
        return self.rows


@dataclass(frozen=True, slots=True)
class TensorTable:
    """A table in the memory of the compute device, [rows, dim]."""

    rows: Tensor
    dtype: torch.dtype

    def begin(self, ids: Tensor) -> Ready:
        return Ready(self.rows[ids].flatten(1).to(self.dtype))
