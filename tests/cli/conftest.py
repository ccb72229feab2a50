"""Running the command as a user does, and servers for it to talk to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.conftest import direct, encode, live, make_engine, store

__all__ = ["direct", "encode", "live", "make_engine", "store"]

COMMAND = [sys.executable, "-m", "strata.cli.main"]


@pytest.fixture
def strata(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``strata`` to its end, with a cache and a termination log of its own; 300 s at most."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={
                **os.environ,
                "STRATA_CACHE_DIR": str(tmp_path / "cache"),
                "STRATA_TERMINATION_LOG": str(tmp_path / "last-words"),
            },
        )

    return run
