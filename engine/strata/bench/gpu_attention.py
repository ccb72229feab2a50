"""How fast a GPU attends over a paged KV cache: a decode step reads all of it once, a prompt multiplies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.gpu_time import Measurement, Work, copies, measure
from strata.errors import OptionError

if TYPE_CHECKING:
    from strata.kernels.attention.batch import PagedBatch

BLOCK_SIZE = 16
_WRITTEN = "HEADS/KV_HEADS/HEAD_DIM:SEQSxCONTEXT+NEW"


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention of ``seqs`` sequences with ``new`` tokens each after ``context`` others."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    seqs: int
    context: int
    new: int

    @classmethod
    def parse(cls, text: str) -> Attention:
        """``HEADS/KV_HEADS/HEAD_DIM:SEQSxCONTEXT+NEW``. Raises OptionError."""
        found = re.fullmatch(r"(\d+)/(\d+)/(\d+):(\d+)x(\d+)\+(\d+)", text)
        if found is None:
            raise OptionError(f"attention is written {_WRITTEN}, not {text!r}")
        one = cls(*map(int, found.groups()))
        if min(one.num_kv_heads, one.head_dim, one.seqs, one.new) < 1 or one.num_heads % one.num_kv_heads:
            raise OptionError(f"{text!r}: the heads are shared out evenly among KV heads; only CONTEXT may be 0")
        if one.head_dim % 2 or one.num_heads * one.head_dim % 32:
            raise OptionError(f"{text!r}: heads have two halves, and all of them together groups of 32")
        return one

    def __str__(self) -> str:
        return f"{self.num_heads}/{self.num_kv_heads}/{self.head_dim}:{self.seqs}x{self.context}+{self.new}"

    @property
    def kv_bytes(self) -> int:
        """Keys and values, once."""
        return self.seqs * (self.context + self.new) * 2 * self.num_kv_heads * self.head_dim * 2

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        seen = self.new * self.context + self.new * (self.new + 1) // 2
        return 4 * self.seqs * seen * self.num_heads * self.head_dim


QWEN3_30B = (
    Attention(32, 4, 128, 1, 1023, 1),
    Attention(32, 4, 128, 1, 32767, 1),
    Attention(32, 4, 128, 32, 8191, 1),
    Attention(32, 4, 128, 1, 0, 2048),
    Attention(32, 4, 128, 1, 0, 8192),
)


def run(cases: Sequence[Attention]) -> Iterator[Measurement]:
    """Measure each on the current GPU. Raises HardwareError without one."""
    return measure(lambda device: (_work(case, device) for case in cases))


def _work(case: Attention, device: Any) -> Work:
    """One step for each of several caches: enough to be read from memory every time."""
    import torch

    from strata.kernels.attention.triton import prepare
    from strata.kernels.layer import Heads, Rotation
    from strata.kernels.matrix import Norm

    norm = Norm(torch.ones(case.head_dim, device=device), 1e-6)
    attend = prepare(Heads(case.num_heads, case.num_kv_heads, case.head_dim, query_norm=norm, key_norm=norm))
    tokens, heads = case.seqs * case.new, case.num_heads + 2 * case.num_kv_heads
    bf16 = {"dtype": torch.bfloat16, "device": device}
    turn = torch.rand(tokens, 1, case.head_dim, **bf16)
    batch = _batch(case, device)
    shape = (batch.tables.numel(), BLOCK_SIZE, 2, case.num_kv_heads, case.head_dim)
    caches = [torch.randn(shape, **bf16) for _ in range(copies(case.kv_bytes, device))]

    def step(cache: Any) -> Callable[[Any], Any]:
        return lambda qkv: attend(qkv, Rotation(turn, turn), cache, batch)

    inputs = (torch.randn(tokens, heads * case.head_dim, **bf16),)
    return Work(str(case), tokens, case.kv_bytes, case.operations, [step(cache) for cache in caches], inputs)


def _batch(case: Attention, device: Any) -> PagedBatch:
    """Every sequence's blocks anywhere in the cache."""
    import torch

    from strata.kernels.attention.batch import PagedBatch

    length = case.context + case.new
    width = -(-length // BLOCK_SIZE)
    tables = torch.randperm(case.seqs * width, device=device).view(case.seqs, width)
    positions = torch.arange(case.context, length, device=device)
    slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return PagedBatch(
        positions.repeat(case.seqs),
        slots.flatten(),
        tables.int(),
        torch.full((case.seqs,), length, dtype=torch.int32, device=device),
        torch.arange(case.seqs + 1, dtype=torch.int32, device=device) * case.new,
        case.new,
    )
