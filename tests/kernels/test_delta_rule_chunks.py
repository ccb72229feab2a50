"""The delta rule in chunks against itself token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.delta_rule import cpu, reference
from strata.kernels.operations import operations_for


def numbers(tokens: int, decay: float) -> dict[str, Tensor]:
    """Arguments of two sequences whose states are not empty; a token's log decay is between 0 and ``-decay``."""
    generator = torch.Generator().manual_seed(0)
    query, key = (functional.normalize(torch.randn(2, tokens, 3, 16, generator=generator), dim=-1) for _ in range(2))
    return {
        "query": query,
        "key": key,
        "value": torch.randn(2, tokens, 3, 8, generator=generator),
        "log_decay": -decay * torch.rand(2, tokens, 3, generator=generator),
        "beta": torch.rand(2, tokens, 3, generator=generator),
        "state": torch.randn(2, 3, 16, 8, generator=generator),
    }


def cut(case: dict[str, Tensor], rows: slice, state: Tensor) -> dict[str, Tensor]:
    """Some of the tokens, with the state that they find."""
    return {name: part[:, rows] for name, part in case.items()} | {"state": state}


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    "decay",
    [
        pytest.param(0.0, id="nothing is forgotten"),
        pytest.param(0.01, id="states last"),
        pytest.param(1.0, id="states fade"),
        pytest.param(1e4, id="a chunk's decay is beyond what exp can undo"),
    ],
)
def test_chunks_give_what_tokens_one_by_one_give(decay: float) -> None:
    case = numbers(200, decay)
    outs, state = [], case["state"]
    for tokens in range(1, 201):
        out, state = reference.delta_rule(**cut(case, slice(tokens - 1, tokens), state))
        outs.append(out)
        found, last = cpu.delta_rule(**cut(case, slice(tokens), case["state"]))
        assert relative(found, torch.cat(outs, 1)) < 1e-5, tokens
        assert relative(last, state) < 1e-5, tokens


def test_like_keys_do_not_blow_up() -> None:
    """Each token takes back all that the one before wrote."""
    case = numbers(150, 0.0)
    case |= {"key": case["key"][:, :1].expand_as(case["key"]), "beta": torch.ones_like(case["beta"])}
    for found, expected in zip(cpu.delta_rule(**case), reference.delta_rule(**case), strict=True):
        assert relative(found, expected) < 1e-5


def test_a_sequence_in_pieces_is_the_same_sequence() -> None:
    case = numbers(130, 0.1)
    whole, last = cpu.delta_rule(**case)
    pieces, state = [], case["state"]
    for rows in (slice(0, 1), slice(1, 70), slice(70, 130)):
        out, state = cpu.delta_rule(**cut(case, rows, state))
        pieces.append(out)
    assert relative(torch.cat(pieces, 1), whole) < 1e-5
    assert relative(state, last) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_takes_chunks(dtype: torch.dtype) -> None:
    assert operations_for(torch.device("cpu"), dtype).delta_rule is cpu.delta_rule
