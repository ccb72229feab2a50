"""A directory that appears whole or not at all."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strata.errors import CheckpointError, StorageError
from strata.store.target import lock, partial


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a" / "store"
    with lock(target), partial(target) as directory:
        (directory / "file").write_text("whole")
        assert not target.exists()
    assert (target / "file").read_text() == "whole"
    assert entries(tmp_path / "a") == ["store"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def make() -> None:
        with lock(tmp_path / "store"), partial(tmp_path / "store") as directory:
            (directory / "file").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make()
    assert entries(tmp_path) == []


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    def make() -> None:
        with lock(tmp_path / "store"), partial(tmp_path / "store"):
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"cannot write .*/store: No space left on device"):
        make()
    assert entries(tmp_path) == []


def test_a_source_that_cannot_be_read_is_named_and_not_the_target(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(CheckpointError, match=f"cannot read {source}: Is a directory"), partial(tmp_path / "store"):
        source.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_two_never_hold_the_lock_together(tmp_path: Path) -> None:
    # Holders remove the lock's file when they leave: one that was waiting must not end up with the removed one.
    inside = 0
    most = 0
    counting = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(25):
            with lock(tmp_path / "store"):
                with counting:
                    inside += 1
                    most = max(most, inside)
                (tmp_path / "work").write_text("x")
                with counting:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert entries(tmp_path) == ["work"]


def test_waiting_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "strata.store.target")
    said = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    listener = Listener()
    logging.getLogger("strata.store.target").addHandler(listener)
    entered: list[bool] = []

    def wait() -> None:
        with lock(tmp_path / "store"):
            entered.append(True)

    waiter = threading.Thread(target=wait)
    with lock(tmp_path / "store"):
        waiter.start()
        assert said.wait(60)
        assert not entered
    waiter.join()
    logging.getLogger("strata.store.target").removeHandler(listener)
    assert entered
    assert f"waiting for another process that makes {tmp_path / 'store'}" in caplog.text


MAKER = """
import sys
from pathlib import Path
from strata.store.target import lock, partial

target = Path(sys.argv[1])
with lock(target), partial(target) as directory:
    (directory / "file").write_text("half")
    print("half-way", flush=True)
    sys.stdin.read()
"""


def test_a_killed_maker_is_no_obstacle(tmp_path: Path) -> None:
    target = tmp_path / "store"
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "half-way\n"
        maker.kill()
    assert entries(tmp_path) == [".store.lock", ".store.partial"]
    with lock(target), partial(target) as directory:
        assert entries(directory) == []
        (directory / "file").write_text("whole")
    assert entries(tmp_path) == ["store"]
    assert (target / "file").read_text() == "whole"
