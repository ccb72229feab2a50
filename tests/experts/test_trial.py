"""A trial with the CPU's real threads: what is timed is what was asked for, whatever was fetched before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.experts.test_resident import made_store
from tests.experts.trial_cases import run_trial
from tests.kernels.interpret import Interpreter

LAYERS, EXPERTS = 2, 4  # of the tiny model; a token takes two


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_store(tmp_path_factory.mktemp("trial"), "int4").path)


def check(where: str, path: str, asked: list[tuple[int, int]], call: Callable[..., Any]) -> None:
    found, table = call(run_trial, where, path, 2, 1, asked)
    expected = [(2 * LAYERS, (2 - missing) * LAYERS, fetched * LAYERS) for missing, fetched in asked]
    assert [(each.needed, each.in_vram, each.fetched) for each in found] == expected
    assert (table != 0).tolist() == [[expert < 2 for expert in range(EXPERTS)]] * LAYERS, "as before"


def here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@pytest.mark.parametrize(
    "where",
    [
        "reference",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
    ],
)
def test_what_is_timed_is_what_was_asked_for(path: str, where: str) -> None:
    check(where, path, [(1, 0), (2, 1), (1, 1), (2, 2), (2, 0), (1, 1)], here)
    found, _ = run_trial(where, path, 1, 3, [(3, 0), (3, 0)])  # three tokens, more experts than one takes
    assert [(each.needed, each.in_vram, each.fetched) for each in found] == [(4 * LAYERS, LAYERS, 0)] * 2


def test_it_is_so_where_triton_decides(path: str, interpreter: Interpreter) -> None:
    check("interpreted", path, [(1, 0), (2, 1)], interpreter.call)
