"""Rows of a table in int8 or bf16, on a GPU: the residual stream begins. One program: BLOCK columns of a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels.embedding import reference
from strata.kernels.embedding.reference import EmbeddingFn
from strata.kernels.matrix import Matrix

BLOCK = 1024


def prepare(table: Matrix) -> EmbeddingFn:
    """The gather from one table: int64 [tokens] -> float32 [tokens, hidden]."""
    if table.kind not in ("int8", "bf16"):
        return reference.prepare(table.kind, table.parts, torch.float32)
    parts = table.parts
    codes = parts["codes" if table.kind == "int8" else "weight"]
    return lambda ids: embedding(ids, codes, parts.get("scales"))


def embedding(ids: Tensor, codes: Tensor, scales: Tensor | None) -> Tensor:
    """codes int8 [vocab, hidden] with scales float16 [vocab, hidden / 32], or bf16 without."""
    hidden = codes.shape[1]
    out = torch.empty(len(ids), hidden, device=codes.device)
    embedding_kernel[(len(ids), triton.cdiv(hidden, BLOCK))](ids, codes, scales, out, hidden, BLOCK=BLOCK)
    return out


@triton.jit
def embedding_kernel(
    ids_ptr,  # int64 [tokens]
    codes_ptr,  # [vocab, hidden]
    scales_ptr,  # float16 [vocab, hidden / 32] or None
    out_ptr,  # float32 [tokens, hidden]
    hidden,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = column < hidden
    row = tl.load(ids_ptr + token)
    out = tl.load(codes_ptr + row * hidden + column, mask=wanted, other=0.0).to(tl.float32)
    if scales_ptr is not None:
        out *= tl.load(scales_ptr + row * (hidden // 32) + column // 32, mask=wanted, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * hidden + column, out, mask=wanted)
