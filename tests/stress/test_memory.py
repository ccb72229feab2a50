"""Whether memory grows, and whose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.stress.memory import MIB, judge, resident, slope


def samples(megabytes: list[float]) -> list[tuple[float, float]]:
    """One a second."""
    return [(float(second), size * MIB) for second, size in enumerate(megabytes)]


@pytest.mark.parametrize(
    ("megabytes", "grows"),
    [
        pytest.param([100.0 + i / 20 for i in range(100)], True, id="3 MiB a minute"),
        pytest.param([100.0 + min(i, 40) for i in range(100)], False, id="at first, and then no more"),
        pytest.param([100.0 + 50 * (i % 10 == 9) for i in range(100)], False, id="peaks"),
        pytest.param([100.0 + i / 20 - 30 * (i % 10 == 9) for i in range(100)], True, id="beneath dips"),
        pytest.param([100.0 - i / 20 for i in range(100)], False, id="it shrinks"),
        pytest.param([100.0], False, id="one sample"),
    ],
)
def test_growth(megabytes: list[float], grows: bool) -> None:
    lines, problems = judge({"engine": samples(megabytes)}, 1 * MIB)
    assert lines[0].startswith("engine: 100 MiB at first")
    assert bool(problems) == grows
    if grows:
        assert problems == ["engine grows by 3.00 MiB a minute; 1 are allowed"]
    assert slope([]) == 0


def test_the_engine_is_what_the_server_has_started() -> None:
    before = resident(os.getpid())
    took = "memory = bytes(range(256)) * (100 << 12); print(len(memory), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", took], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        after = resident(os.getpid())
        child.communicate(b"\n")
    assert 100 * MIB < after["engine"] - before["engine"] < 150 * MIB
    assert after["server"] - before["server"] < 50 * MIB
