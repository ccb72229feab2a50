"""Rows of a table in any bit format, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from strata.kernels.dequantize.reference import dequantize

EmbeddingFn = Callable[[Tensor], Tensor]  # int64 [tokens] -> [tokens, hidden]


def embedding(ids: Tensor, kind: str, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """ids int64 [tokens], parts of a table [vocab, hidden] in format ``kind`` -> [tokens, hidden] in ``dtype``.

    Only the rows asked for are dequantised.
    """
    return dequantize(kind, {name: part.index_select(0, ids) for name, part in parts.items()}, dtype)


def prepare(kind: str, parts: Mapping[str, Tensor], dtype: torch.dtype) -> EmbeddingFn:
    """The gather from one table, as a function of the ids."""
    return lambda ids: embedding(ids, kind, parts, dtype)
