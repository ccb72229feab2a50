"""What there is to choose about missing experts: how they are split, who guesses them, where a token's are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.experts.ways import Split, Way, all_ways

HALF, FETCH, CPU = (0, 0, 1), (0, 1, 2), (0, 0, 0)


@pytest.mark.parametrize(
    ("splits", "prefetch", "routing", "names"),
    [
        pytest.param([HALF, FETCH], "off", "gpu", ["hybrid", "fetch"], id="nobody shall guess"),
        pytest.param([CPU, FETCH], "gate", "gpu", ["cpu, prefetch gate", "fetch, prefetch gate"], id="who shall guess"),
        pytest.param(
            [HALF],
            "auto",
            "gpu",
            ["hybrid", "hybrid, prefetch gate", "hybrid, prefetch history"],
            id="whoever makes it faster",
        ),
        pytest.param([HALF], "off", "cpu", ["hybrid, routed on the CPU"], id="where experts shall be chosen"),
        pytest.param(
            [HALF, CPU],
            "off",
            "auto",
            ["hybrid", "cpu", "cpu, routed on the CPU"],
            id="chosen there where the CPU computes all",
        ),
        pytest.param([CPU], "gate", "auto", ["cpu, prefetch gate"], id="not where VRAM's experts change"),
    ],
)
def test_what_is_compared(splits: list[Split], prefetch: str, routing: str, names: list[str]) -> None:
    assert [str(way) for way in all_ways(splits, prefetch, routing)] == names


def test_a_captured_step_serves_what_asks_alike() -> None:
    half, cpu = Way(HALF), Way(CPU)
    assert half.captured == cpu.captured, "the split is read at every step"
    half, cpu = (replace(way, routed_on="cpu") for way in (half, cpu))
    assert len({half.captured, cpu.captured, Way(CPU).captured, Way(CPU, "gate").captured}) == 4


def test_the_cpu_computes_all_only_if_it_does_so_for_many_tokens_too() -> None:
    """A token takes two: for one nothing is fetched, for more of them something."""
    assert not Way((0, 0, 0, 1)).leaves_all
