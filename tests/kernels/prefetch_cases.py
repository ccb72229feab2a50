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


def _of_qwen3(tokens: int, num_slots: int) -> None:
    ids, shares = torch.empty(tokens, 8, dtype=torch.int32), torch.empty(tokens, 8)
    table, ahead = make_table(128, num_slots, [0] * 129), make_ahead(2)
    guess_routed(ids, shares, table, ahead)
    guess_recent(85, table, ahead)
    admit(ids, table, ahead)


CASES = [
    Case("look ahead, one token of Qwen3-30B-A3B, the fewest slots", lambda: _of_qwen3(1, 4), everywhere=False),
    Case("look ahead, 16 tokens of Qwen3-30B-A3B", lambda: _of_qwen3(16, 127)),
]
