"""What is compiled of attention: ``test_compile``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from strata.kernels.attention.batch import PagedBatch
from strata.kernels.attention.triton import prepare
from strata.kernels.layer import Heads, Rotation
from strata.kernels.matrix import Norm
from tests.kernels.compilation import Case


def _attend(heads: Heads, seqs: int, max_query: int, rotary_dim: int | None) -> None:
    tokens, blocks = seqs * max_query, 128
    columns = heads.num_projected * heads.head_dim
    turn = torch.empty(tokens, 1, rotary_dim or heads.head_dim, dtype=torch.bfloat16)
    cache = torch.empty(blocks, 16, 2, heads.num_kv_heads, heads.head_dim, dtype=torch.bfloat16)
    index = torch.empty(tokens, dtype=torch.int64)
    table, lengths = torch.empty(seqs, blocks, dtype=torch.int32), torch.empty(seqs, dtype=torch.int32)
    batch = PagedBatch(index, index, table, lengths, torch.empty(seqs + 1, dtype=torch.int32), max_query)
    prepare(heads)(torch.empty(tokens, columns, dtype=torch.bfloat16), Rotation(turn, turn), cache, batch)


def _both(
    name: str, heads: Callable[[], Heads], *, rotary_dim: int | None = None, everywhere: bool = False
) -> list[Case]:
    return [
        Case(f"decode and chunks, {name}", lambda: _attend(heads(), 2, 64, rotary_dim)),
        Case(f"decode, {name}", lambda: _attend(heads(), 1, 1, rotary_dim), everywhere=everywhere),
    ]


def _normed() -> Heads:
    norm = Norm(torch.empty(128), 1e-6)
    return Heads(32, 4, 128, query_norm=norm, key_norm=norm)


def _gated() -> Heads:
    norm = Norm(torch.empty(256), 1e-6)
    return Heads(16, 2, 256, query_norm=norm, key_norm=norm, gated=True)


def _with_sinks() -> Heads:
    return Heads(64, 8, 64, 128, sinks=torch.empty(64))


CASES = [
    *_both("Qwen3-30B-A3B", _normed),
    *_both("Qwen3-Next", _gated, rotary_dim=64),
    *_both("gpt-oss, window", _with_sinks),
    *_both("heads of 96", lambda: Heads(12, 12, 96), everywhere=True),
]
