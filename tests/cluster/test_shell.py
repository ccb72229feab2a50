from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.errors import CommandError, last_lines
from tests.cluster.shell import locked, run


def test_a_failing_command_says_what_it_was_and_what_it_complained_about() -> None:
    with pytest.raises(CommandError, match=r"`sh -c .*` failed with status 3:\n    no such thing"):
        run(["sh", "-c", "echo no such thing >&2; exit 3"])


def test_an_absent_command_is_named() -> None:
    with pytest.raises(CommandError, match="cannot run /nowhere/tool"):
        run(["/nowhere/tool"])


def test_a_command_gets_no_input_unless_given() -> None:
    assert run(["cat"]) == ""
    assert run(["cat"], input="text") == "text"


def _hold(path: Path, held: threading.Event, release: threading.Event) -> None:
    with locked(path):
        held.set()
        release.wait(20)


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    held, release, waiting = threading.Event(), threading.Event(), threading.Event()
    other = threading.Thread(target=_hold, args=(lock, held, release))
    other.start()
    assert held.wait(20)

    def told() -> None:
        waiting.set()
        release.set()

    with locked(lock, told):
        assert waiting.is_set()
        other.join(20)
        assert not other.is_alive()


def test_whoever_waited_for_an_unlinked_lock_takes_the_new_one(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    held, release = threading.Event(), threading.Event()
    other = threading.Thread(target=_hold, args=(lock, held, release))
    other.start()
    assert held.wait(20)

    def told() -> None:
        lock.unlink()
        release.set()

    with locked(lock, told):
        assert lock.exists()
    other.join(20)


def test_a_killed_holder_gives_the_lock_back(tmp_path: Path) -> None:
    script = """
import sys, threading
from pathlib import Path
from tests.cluster.shell import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    threading.Event().wait()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RefusedError), locked(tmp_path / "lock", refuse):
            pass
        holder.kill()
    with locked(tmp_path / "lock", refuse):
        pass


class RefusedError(Exception):
    pass


def refuse() -> None:
    raise RefusedError


@pytest.mark.parametrize(
    ("content", "shown"),
    [("a\nb\nc\n", "    b\n    c"), ("", "is empty"), (None, "No such file")],
    ids=["some", "empty", "absent"],
)
def test_last_lines(tmp_path: Path, content: str | None, shown: str) -> None:
    path = tmp_path / "x.log"
    if content is not None:
        path.write_text(content)
    assert shown in last_lines(path, 2)
