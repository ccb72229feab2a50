"""Running the command as a user does, and servers for it to talk to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import strata as package
from tests.runner.conftest import no_card
from tests.server.conftest import direct, encode, family_store, live, make_engine, store

__all__ = ["direct", "encode", "family_store", "live", "make_engine", "no_card", "store"]

COMMAND = [sys.executable, "-m", "strata.cli.main"]


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``strata`` as a plain install has it, without any package."""
    source = Path(package.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(source)!r}); from strata.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


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


@dataclass(frozen=True)
class Server:
    """A running ``strata serve``."""

    process: subprocess.Popen[str]
    url: str
    log: Path


@contextmanager
def running_server(log: Path, model: str, *options: str) -> Iterator[Server]:
    """Serve a model as int4 on the CPU, on a free port. It ends with SIGTERM, and must then exit with 0."""
    command = [*COMMAND, "serve", model, "--dtype", "int4", "--device", "cpu", "--port", "0", *options]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()  # comes when the model is loaded
        assert line.startswith("Strata serves "), log.read_text()
        yield Server(process, line.split()[-1], log)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait() == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
