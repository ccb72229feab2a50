"""A directory that appears whole or not at all."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strata.errors import CheckpointError, StorageError
from strata.store.journal import Journal
from strata.store.manifest import Shard
from strata.store.target import lock, partial


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a" / "store"
    with lock(target), partial(target, "a") as (directory, _):
        (directory / "file").write_text("whole")
        assert not target.exists()
    assert (target / "file").read_text() == "whole"
    assert entries(tmp_path / "a") == ["store"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def make() -> None:
        with lock(tmp_path / "store"), partial(tmp_path / "store", "a") as (directory, _):
            (directory / "file").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make()
    assert entries(tmp_path) == []


@pytest.mark.parametrize("has_shard", [True, False])
def test_who_interrupts_is_told_where_the_same_command_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_shard: bool
) -> None:
    def make() -> None:
        with lock(tmp_path / "store"), partial(tmp_path / "store", "a") as (_, journal):
            if has_shard:
                journal.add(Shard("a.safetensors", 1, "0"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make()
    assert ("the same command goes on from there" if has_shard else "the same command begins anew") in caplog.text


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    def make() -> None:
        with lock(tmp_path / "store"), partial(tmp_path / "store", "a"):
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"cannot write .*/store: No space left on device"):
        make()
    assert entries(tmp_path) == []


def test_a_source_that_cannot_be_read_is_named_and_not_the_target(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (
        pytest.raises(CheckpointError, match=f"cannot read {source}: Is a directory"),
        partial(tmp_path / "store", "a"),
    ):
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


def test_a_waiter_is_shown_what_the_other_has_made(tmp_path: Path) -> None:
    target = tmp_path / "store"
    shown = threading.Event()
    sizes: list[int] = []

    def show(num_bytes: int) -> None:
        sizes.append(num_bytes)
        shown.set()

    def wait() -> None:
        with lock(target, show):
            pass

    waiter = threading.Thread(target=wait)
    with lock(target), partial(target, "a") as (directory, _):
        (directory / "file").write_bytes(bytes(100_000))
        waiter.start()
        assert shown.wait(60)
    waiter.join()
    assert sizes[0] >= 100_000


def test_a_folder_that_its_maker_moves_meanwhile_does_not_end_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial_path = tmp_path / ".store.partial"
    (partial_path / "content").mkdir(parents=True)
    list_folder = os.scandir

    def move_first(path: str) -> object:
        if Path(path).name == "content" and Path(path).exists():
            Path(path).rename(tmp_path / "store")
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", move_first)
    shown: list[int] = []

    def give_up(num_bytes: int) -> None:
        shown.append(num_bytes)
        raise KeyboardInterrupt

    with lock(tmp_path / "store"), pytest.raises(KeyboardInterrupt), lock(tmp_path / "store", give_up):
        pass
    assert shown == [0]
    assert (tmp_path / "store").is_dir()


def test_waiting_can_be_given_up(tmp_path: Path) -> None:
    def give_up(num_bytes: int) -> None:
        raise KeyboardInterrupt

    with lock(tmp_path / "store"):
        with pytest.raises(KeyboardInterrupt), lock(tmp_path / "store", give_up):
            pass
        assert entries(tmp_path) == [".store.lock"]  # still held


MAKER = """
import sys
from pathlib import Path
from strata.store.manifest import Shard
from strata.store.target import lock, partial

target = Path(sys.argv[1])
with lock(target), partial(target, "a") as (directory, journal):
    (directory / "first").write_text("whole")
    journal.add(Shard("first", 5, "0"))
    (directory / "second").write_text("ha")
    print("half-way", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a maker that was killed half-way leaves: its target's path."""
    target = tmp_path / "store"
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "half-way\n"
        maker.kill()
    assert entries(tmp_path) == [".store.lock", ".store.partial"]
    return target


def test_what_a_killed_maker_finished_is_there_again(killed: Path) -> None:
    with lock(killed), partial(killed, "a") as (directory, journal):
        assert list(journal.shards) == ["first"]
        assert journal.finished(directory, "first") == Shard("first", 5, "0")
        assert journal.finished(directory, "second") is None
        (directory / "second").write_text("whole")
    assert entries(killed.parent) == ["store"]
    assert [(killed / name).read_text() for name in ("first", "second")] == ["whole", "whole"]


def test_another_maker_begins_anew(killed: Path) -> None:
    with lock(killed), partial(killed, "b") as (directory, journal):
        assert entries(directory) == []
        assert not journal.shards
        (directory / "file").write_text("whole")
    assert entries(killed) == ["file"]


def test_a_torn_line_costs_only_its_shard(killed: Path) -> None:
    path = killed.with_name(".store.partial") / "journal"
    path.write_bytes(path.read_bytes() + b'{"file": "second", "by')
    with lock(killed), partial(killed, "a") as (_, journal):
        assert list(journal.shards) == ["first"]
        journal.add(Shard("second", 5, "1"))
        assert list(Journal(path).shards) == ["first", "second"]


def test_a_finished_shard_that_lost_bytes_is_not_finished(killed: Path) -> None:
    with lock(killed), partial(killed, "a") as (directory, journal):
        (directory / "first").write_text("whol")
        assert journal.finished(directory, "first") is None
        (directory / "first").unlink()
        assert journal.finished(directory, "first") is None


def fail(target: Path, error: BaseException, *, finished: bool) -> list[str]:
    def make() -> None:
        with lock(target), partial(target, "a") as (_, journal):
            if finished:
                journal.add(Shard("first", 5, "0"))
            raise error

    with pytest.raises(type(error)):
        make()
    return entries(target.parent)


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path) -> None:
    assert fail(tmp_path / "store", KeyboardInterrupt(), finished=False) == []
    assert fail(tmp_path / "store", KeyboardInterrupt(), finished=True) == [".store.partial"]


def test_a_fault_of_the_source_keeps_nothing(tmp_path: Path) -> None:
    assert fail(tmp_path / "store", CheckpointError("NaN"), finished=True) == []
