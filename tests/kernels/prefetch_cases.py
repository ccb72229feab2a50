"""What is fetched ahead, for tests, and calls that return all that a kernel wrote."""

from __future__ import annotations

import torch
from torch import Tensor

from strata.kernels.misses.table import MissTable
from strata.kernels.prefetch.ahead import Ahead
from strata.kernels.prefetch.triton import admit, guess_recent, guess_routed
from tests.kernels.compilation import Case
from tests.kernels.misses_cases import call_share_out_alone, make_table, to


def make_ahead(num_ahead: int) -> Ahead:
    """Nothing is on its way."""
    return Ahead.none((1 << 20) + 4096 * torch.arange(num_ahead))


def call_guess_routed(ids: Tensor, shares: Tensor, table: MissTable, ahead: Ahead) -> tuple[MissTable, Ahead]:
    guess_routed(ids, shares, table, ahead)
    return table, ahead


def call_guess_recent(least: int, table: MissTable, ahead: Ahead) -> tuple[MissTable, Ahead]:
    guess_recent(least, table, ahead)
    return table, ahead


def call_admit(ids: Tensor, table: MissTable, ahead: Ahead) -> tuple[MissTable, Ahead]:
    admit(ids, table, ahead)
    return table, ahead


def call_steps(
    steps: list[tuple[Tensor, Tensor, Tensor]], table: MissTable, ahead: Ahead
) -> list[tuple[MissTable, Ahead]]:
    """Table and what is fetched ahead after each step of (guessed, needed, shares of both)."""
    after = []
    for guessed, needed, shares in steps:
        guess_routed(guessed, shares, table, ahead)
        admit(needed, table, ahead)
        call_share_out_alone(needed, shares, table)
        after.append((to(table, "cpu"), to(ahead, "cpu")))
    return after


def look_ahead_of_half(tokens: int, num_experts: int) -> None:
    """Of as many experts, ten a token, of which VRAM has half."""
    _look_ahead(tokens, 10, num_experts, num_experts // 2)


def _look_ahead(tokens: int, top_k: int, num_experts: int, num_slots: int) -> None:
    ids, shares = torch.empty(tokens, top_k, dtype=torch.int32), torch.empty(tokens, top_k)
    table, ahead = make_table(num_experts, num_slots, [0] * (num_experts + 1)), make_ahead(2)
    guess_routed(ids, shares, table, ahead)
    guess_recent(85, table, ahead)
    admit(ids, table, ahead)


CASES = [
    Case("look ahead, one token of Qwen3-30B-A3B, few slots", lambda: _look_ahead(1, 8, 128, 4), everywhere=False),
    Case("look ahead, 16 tokens of Qwen3-30B-A3B", lambda: _look_ahead(16, 8, 128, 127)),
    Case("look ahead, one token of Qwen3-Next-80B-A3B", lambda: look_ahead_of_half(1, 512)),
    Case("look ahead, 16 tokens of Qwen3-Next-80B-A3B", lambda: _look_ahead(16, 10, 512, 511)),
]
