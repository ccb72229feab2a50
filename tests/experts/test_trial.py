"""A trial, at first with the CPU's real threads: what is timed is what was asked for, whatever was fetched before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from strata.errors import EngineError
from strata.experts.hybrid import Hybrid
from strata.experts.times import Bounds
from strata.experts.trial import Trial, open_trial
from strata.experts.ways import Way
from tests.experts.test_resident import made_store
from tests.experts.trial_cases import open_tier, run_trial
from tests.kernels.interpret import Interpreter

LAYERS = 2  # of the tiny model; a token takes two of four experts


PLACES = [
    "reference",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_store(tmp_path_factory.mktemp("trial"), "int4").path)


def check(where: str, path: str, asked: list[tuple[int, int]], call: Callable[..., Any]) -> None:
    found = call(run_trial, where, path, 2, 1, asked)
    expected = [(2 * LAYERS, (2 - missing) * LAYERS, fetched * LAYERS) for missing, fetched in asked]
    assert [(each.needed, each.in_vram, each.fetched) for each in found] == expected


def here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@pytest.mark.parametrize("where", PLACES)
def test_what_is_timed_is_what_was_asked_for(path: str, where: str) -> None:
    check(where, path, [(1, 0), (2, 1), (1, 1), (2, 2), (2, 0), (1, 1)], here)
    found = run_trial(where, path, 1, 3, [(3, 0), (3, 0)])  # three tokens, more experts than one takes
    assert [(each.needed, each.in_vram, each.fetched) for each in found] == [(4 * LAYERS, LAYERS, 0)] * 2


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("error", [None, EngineError("the CPU's threads do not answer")], ids=["ended", "failed"])
def test_afterwards_all_is_as_it_was(path: str, where: str, error: EngineError | None) -> None:
    with open_tier(where, path, 2) as (tier, bounds):
        tier.begin(Way((0, 1, 1, 2, 2), "history", "cpu"))
        before = state_of(tier)
        with suppress(EngineError), open_trial(tier.few, bounds, 1, LAYERS) as trial:
            trial.seconds(2, 2)
            during = state_of(tier)
            if error is not None:
                raise error
        assert all(now != then for now, then in zip(during, before, strict=True))
        assert state_of(tier) == before


def state_of(tier: Hybrid) -> tuple[Any, ...]:
    """All that decides what steps do and find, down to the bytes in slots."""
    slots = tier.slots
    owners = [table.owners.tolist() for table in slots.tables]
    return tier.few.way, slots.split.tolist(), slots.registry.table.tolist(), owners, slots._changing.cpu().tolist()


def test_it_is_so_where_triton_decides(path: str, interpreter: Interpreter) -> None:
    check("interpreted", path, [(1, 0), (2, 1)], interpreter.call)


def test_many_tokens_take_what_was_drawn_in_turn() -> None:
    addresses = torch.zeros(1, 12, dtype=torch.int64)
    addresses[:, :4] = 4096
    bounds, seen = Bounds(top_k=3, num_slots=4, num_experts=12), []
    ids = torch.zeros(1, 5, 3, dtype=torch.int32)
    trial = Trial(lambda: seen.append(ids.clone()), bounds, ids, addresses, torch.zeros(13, dtype=torch.int32))
    trial.seconds(6, 1)
    (taken,) = seen
    assert all(len(set(row)) == 3 for row in taken[0].tolist())
    drawn = set(taken.flatten().tolist())
    assert (len(drawn - {0, 1, 2, 3}), len(drawn & {0, 1, 2, 3})) == (6, 3)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_as_many_are_missing_as_was_asked_for(missing: int) -> None:
    """Others each time, and also after the layers have changed what is there."""
    addresses = torch.zeros(2, 8, dtype=torch.int64)
    addresses[:, :3] = 4096
    ids, split = torch.zeros(2, 1, 3, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    seen = []

    def run() -> None:
        taken = ids.squeeze(1).long()
        assert all(len(set(row)) == 3 for row in taken.tolist())
        assert (addresses.gather(1, taken) == 0).sum(-1).tolist() == [missing, missing]
        assert int(split[missing]) == 1
        seen.append(taken.tolist())
        addresses.copy_(addresses.roll(1, dims=1))

    trial = Trial(run, Bounds(top_k=3, num_slots=3, num_experts=8), ids, addresses, split)
    assert all(trial.seconds(missing, 1) >= 0 for _ in range(8))
    assert len({str(each) for each in seen}) > 1
