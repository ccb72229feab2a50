from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import build as build_module
from tests.cluster import parts
from tests.cluster.build import build, check_go, clean, parse_go_version
from tests.cluster.errors import BuildError, PrerequisiteError
from tests.cluster.parts import Part

# Stands in for the compiler: makes the programs that it is asked for, and does what the test wrote into `behaviour`.
_GO = """#!/bin/sh
[ "$1" = mod ] && { echo "{\\"Dir\\": \\"$FAKE_GO/module\\"}"; exit; }
[ "$1" = env ] && { echo "${FAKE_GO_VERSION:-go1.26.8}"; exit; }
echo "$PWD" >> "$FAKE_GO/calls"
while [ "$1" != -o ]; do shift; done
. "$FAKE_GO/behaviour"
echo built > "${2}program"
"""


class FakeGo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.behave(":")

    def behave(self, script: str) -> None:
        (self.folder / "behaviour").write_text(script)

    @property
    def calls(self) -> int:
        log = self.folder / "calls"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(_GO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_GO", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return FakeGo(tmp_path)


@pytest.fixture
def thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    (tmp_path / "modules" / "thing").mkdir(parents=True)
    (tmp_path / "modules" / "thing" / "go.mod").write_text("module thing\n\ngo 1.26.0\n")
    monkeypatch.setattr(parts, "MODULES", tmp_path / "modules")
    return Part("thing", {"thing": "."}, seconds=7)


def test_a_part_is_built_once_and_then_taken_from_the_cache(go: FakeGo, thing: Part) -> None:
    said: list[str] = []
    build([thing], said.append)
    build([thing], said.append)
    assert go.calls == 1
    assert (thing.folder / "thing").read_text() == "built\n"
    assert "[1/1] thing: building, about 7 s" in said[0]
    assert "[1/1] thing: built in " in said[1]
    assert "from cache" in said[2]


def test_a_failing_part_shows_the_compilers_last_lines_and_leaves_nothing(go: FakeGo, thing: Part) -> None:
    go.behave('echo half > "${2}program"; seq 100; echo "main.go:1: undefined: x" >&2; exit 1')
    with pytest.raises(BuildError, match=r"thing did not build \(status 1\)(.|\n)*100\n +main\.go:1: undefined: x$"):
        build([thing], lambda _: None)
    assert not thing.is_built
    assert [path for path in parts.cache_root().iterdir() if path.is_dir()] == []


def test_a_part_of_files_alone_is_not_compiled(go: FakeGo, thing: Part) -> None:
    (go.folder / "module" / "config").mkdir(parents=True)
    (go.folder / "module" / "config" / "crd.yaml").write_text("kind: x")
    (thing.source / "go.mod").write_text("module thing\n\ngo 1.26.0\n\nrequire example.org/m v1.2.3\n")
    files = Part("thing", {}, seconds=1, upstream="example.org/m", files=("config/crd.yaml",))
    build([files], lambda _: None)
    assert go.calls == 0
    assert (files.folder / "crd.yaml").read_text() == "kind: x"


def test_a_killed_compiler_is_told_from_a_failing_one(go: FakeGo, thing: Part) -> None:
    go.behave("kill -9 $$")
    with pytest.raises(BuildError, match=r"thing did not build \(killed by SIGKILL\)"):
        build([thing], lambda _: None)


def test_a_build_that_leaves_a_program_out_is_no_success(go: FakeGo, thing: Part) -> None:
    two = Part("thing", {"program": ".", "other": "./other"}, seconds=1)
    with pytest.raises(BuildError, match="left no other"):
        build([two], lambda _: None)
    assert not two.is_built


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_an_interrupted_build_goes_on_when_run_again(go: FakeGo, thing: Part, number: signal.Signals) -> None:
    go.behave('echo half > "${2}program"; touch "$FAKE_GO/started"; exec sleep 60')
    script = f"""
from pathlib import Path
from tests.cluster import build as build_module
from tests.cluster import parts
from tests.cluster.build import build
parts.MODULES = Path({str(parts.MODULES)!r})
build([parts.Part("thing", {{"thing": "."}}, seconds=7)])
"""
    builder = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (go.folder / "started").exists():
        assert builder.poll() is None
        time.sleep(0.01)
    os.killpg(builder.pid, number)  # the whole group, as a terminal does
    builder.wait()
    assert not thing.is_built

    go.behave(":")
    build([thing], lambda _: None)
    assert (thing.folder / "thing").read_text() == "built\n"
    assert [path.name for path in parts.cache_root().iterdir() if path.is_dir()] == [thing.folder.name]


def test_two_builders_do_not_build_the_same_part_twice(go: FakeGo, thing: Part) -> None:
    go.behave('until [ -e "$FAKE_GO/go-on" ]; do sleep 0.01; done')
    script = f"""
from pathlib import Path
from tests.cluster import build as build_module
from tests.cluster import parts
from tests.cluster.build import build
parts.MODULES = Path({str(parts.MODULES)!r})
build([parts.Part("thing", {{"thing": "."}}, seconds=7)], lambda line: print(line, flush=True))
"""
    command = [sys.executable, "-c", script]
    root = Path(__file__).parents[2]
    with (
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as second,
    ):
        assert first.stdout is not None
        assert second.stdout is not None
        opening = {first.stdout.readline(), second.stdout.readline()}
        (go.folder / "go-on").touch()
        first.communicate()
        second.communicate()
    assert any("another process is building" in line for line in opening)
    assert (first.returncode, second.returncode, go.calls) == (0, 0, 1)


def test_an_old_go_is_refused_before_anything_is_built(
    go: FakeGo, thing: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_VERSION", "go1.22.4")
    with pytest.raises(PrerequisiteError, match=r"Go is go1\.22\.4, but the cluster's parts need 1\.26\.0 or newer"):
        build([thing], lambda _: None)
    assert go.calls == 0


def test_a_missing_go_is_named(thing: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build_module, "_GO_BIN", str(tmp_path))
    with pytest.raises(PrerequisiteError, match=r"Go is not on the PATH; install Go 1\.26\.0 or newer"):
        check_go([thing])


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8", (1, 26, 8)), ("go1.27", (1, 27)), ("go1.27rc1", (1, 27)), ("go1.26.1 X:nogreenteagc", (1, 26, 1))],
)
def test_go_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert parse_go_version(text) == version


def test_a_development_go_counts_as_new_enough() -> None:
    assert parse_go_version("devel +abc") > (1, 26)


def test_clean_removes_only_what_no_part_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = [parts.part("etcd").folder, parts.cache_root() / "registry"]
    for folder in (*kept, parts.cache_root() / "etcd-000000000000"):
        folder.mkdir(parents=True)
    assert clean() == ["etcd-000000000000"]
    assert all(folder.is_dir() for folder in kept)
