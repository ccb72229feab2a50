"""The environment that torch's threads find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from strata.runner.threads import SPIN_TURNS, yield_early


@pytest.mark.parametrize(
    ("given", "spin"),
    [
        pytest.param({}, str(SPIN_TURNS), id="nothing set"),
        pytest.param({"GOMP_SPINCOUNT": "5"}, "5", id="spins set by the user"),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, None, id="policy set by the user"),
    ],
)
def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], spin: str | None) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    yield_early()
    assert os.environ.get("GOMP_SPINCOUNT") == spin
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


def test_it_comes_before_torch() -> None:
    code = "import strata.runner.threads, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
