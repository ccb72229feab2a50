"""The environment that torch's threads find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from strata.runner import threads
from strata.runner.threads import SPIN_TURNS, yield_early


@pytest.mark.parametrize(
    ("num_threads", "given", "spin"),
    [
        pytest.param(None, {}, str(SPIN_TURNS), id="a thread a CPU"),
        pytest.param(4, {}, str(SPIN_TURNS), id="as many as there are"),
        pytest.param(3, {}, None, id="one CPU to spare"),
        pytest.param(None, {"GOMP_SPINCOUNT": "5"}, "5", id="spins set by the user"),
        pytest.param(None, {"OMP_WAIT_POLICY": "ACTIVE"}, None, id="policy set by the user"),
    ],
)
def test_threads_sleep_early_where_no_cpu_is_left(
    monkeypatch: pytest.MonkeyPatch, num_threads: int | None, given: dict[str, str], spin: str | None
) -> None:
    monkeypatch.setattr(threads, "num_cpus", lambda: 4)
    monkeypatch.setattr(os, "environ", dict(given))
    yield_early(num_threads)
    assert os.environ.get("GOMP_SPINCOUNT") == spin


def test_it_comes_before_torch() -> None:
    code = "import strata.runner.threads, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
