from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import environment


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty checkout whose commands are recorded, not run; see ``commands``."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("uv==1\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "UV", tmp_path / ".venv" / "bin" / "uv")
    monkeypatch.setattr(environment, "CONSTRAINTS", tmp_path / "constraints.txt")
    return tmp_path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> list[str]:
    ran: list[str] = []

    def run(*command: str | Path, **_: str) -> None:
        ran.append(" ".join(map(str, command)))
        if "venv" in command:
            (checkout / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        if command[-1] == "uv":
            environment.UV.write_text("#!/bin/sh\n")
            environment.UV.chmod(0o755)

    monkeypatch.setattr(environment, "run", run)
    return ran


def test_an_unchanged_environment_is_not_made_again(commands: list[str]) -> None:
    environment.make_venv("light")
    assert commands
    commands.clear()
    environment.make_venv("light")
    assert commands == []


def test_a_full_environment_is_a_light_one_too(commands: list[str]) -> None:
    environment.make_venv("full")
    commands.clear()
    environment.make_venv("light")
    assert commands == []


def test_a_changed_pin_installs_into_the_environment_that_is_there(commands: list[str], checkout: Path) -> None:
    environment.make_venv("full")
    commands.clear()
    (checkout / "constraints.txt").write_text("uv==2\n")
    environment.make_venv("full")
    assert commands
    assert not [command for command in commands if "--clear" in command]


def test_an_interrupted_installation_is_begun_anew(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    environment.make_venv("light")
    (checkout / "constraints.txt").write_text("uv==2\n")
    recorded = environment.run

    def interrupted(*command: str | Path, **env: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environment.make_venv("light")
    monkeypatch.setattr(environment, "run", recorded)
    commands.clear()
    environment.make_venv("light")
    assert f"{sys.executable} -m venv --clear {checkout / '.venv'}" in commands


def test_an_old_python_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    with pytest.raises(SystemExit, match=r"3\.11 or newer is needed.*make PYTHON="):
        environment.check_python()


@pytest.mark.parametrize(
    ("tools", "user", "words"),
    [
        pytest.param([], 0, "install them with your package manager", id="not Debian"),
        pytest.param(["apt-get"], 1000, "as root: apt-get update && apt-get install", id="not root"),
    ],
)
def test_missing_packages_are_named_where_they_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch, tools: list[str], user: int, words: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: tool if tool in tools else None)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(SystemExit) as error:
        environment.install(["buildah"])
    assert "buildah" in str(error.value)
    assert words.lower() in str(error.value).lower()


def test_the_constraints_hold_pins_and_no_address() -> None:
    for line in (environment.ROOT / "constraints.txt").read_text().splitlines():
        assert "==" in line
        assert "://" not in line


def test_the_kernels_are_configured_once_and_built_every_time(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    monkeypatch.setattr(environment, "present", lambda proof: True)
    environment.build_native()
    (checkout / "build" / "native").mkdir(parents=True)
    (checkout / "build" / "native" / "build.ninja").touch()
    environment.build_native()
    assert [" --build " in command for command in commands] == [False, True, True]


def test_the_kernels_need_a_compiler(commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    monkeypatch.setattr(environment, "present", lambda proof: False)
    monkeypatch.setattr(environment, "install", installed.extend)
    environment.build_native()
    assert installed == ["g++"]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The one folder of PATH, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(environment, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(environment, "PROMETHEUS", tmp_path / "cache" / "prometheus")
    return folder


def program(place: Path, script: str = "exit 1") -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)


def test_prometheus_of_the_machine_is_taken(programs: Path) -> None:
    for name in ("prometheus", "promtool", "apt-get"):
        program(programs / name)
    environment.fetch_prometheus()
    assert environment.find_prometheus("promtool") == str(programs / "promtool")


def test_prometheus_is_unpacked_once_and_not_installed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs / "apt-get", 'case "$*" in *download*) echo > prometheus.deb ;; esac; echo "$*" >> "$0.log"')

    def unpack(*command: str | Path) -> None:
        assert [str(part) for part in command[:2]] == ["dpkg-deb", "-x"]
        for name in ("prometheus", "promtool"):
            program(Path(command[3]) / "usr" / "bin" / name)

    monkeypatch.setattr(environment, "run", unpack)
    environment.fetch_prometheus()
    environment.fetch_prometheus()
    assert environment.find_prometheus("prometheus") == str(environment.PROMETHEUS / "usr" / "bin" / "prometheus")
    asked = (programs / "apt-get.log").read_text().splitlines()
    assert [line for line in asked if "install" in line] == []
    assert len([line for line in asked if "download prometheus" in line]) == 1
    assert [path.name for path in environment.CACHE.iterdir()] == ["prometheus"]


def test_without_apt_get_nothing_is_brought(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment.fetch_prometheus()
    assert "are skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tools", "user", "has_package", "installed"),
    [
        pytest.param(["chromium", "apt-get"], 0, True, [], id="another one is there"),
        pytest.param(["apt-get"], 0, True, ["chromium-headless-shell"], id="Debian"),
        pytest.param(["apt-get"], 0, False, [], id="no such package"),
        pytest.param(["apt-get"], 1000, True, [], id="not root"),
        pytest.param([], 0, True, [], id="not Debian"),
    ],
)
def test_a_browser_is_installed_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch, tools: list[str], user: int, has_package: bool, installed: list[str]
) -> None:
    taken: list[str] = []

    def apt(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, int("show" in command and not has_package))

    monkeypatch.setattr(shutil, "which", lambda tool, path=None: tool if tool in tools else None)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(subprocess, "run", apt)
    monkeypatch.setattr(environment, "install", taken.extend)
    environment.install_browser()
    assert taken == installed


# Refuses what the named packages do not bring along, and this project's own, which is not installed then.
WITH_THESE_ALONE = """
import importlib, importlib.abc, importlib.metadata, re, sys

def brought(name, seen):
    if name in seen:
        return
    seen.add(name)
    try:
        needed = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for one in needed:
        if "extra ==" not in one:
            brought(normal(re.match("[A-Za-z0-9_.-]+", one)[0]), seen)

def normal(name):
    return re.sub("[-_.]+", "-", name).lower()

there = set()
for name in sys.argv[2:]:
    brought(normal(name), there)
modules = importlib.metadata.packages_distributions()

class Refuses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        of = modules.get(top)
        if top in ("strata", "strata_operator") or (of and not there & {normal(one) for one in of}):
            raise ModuleNotFoundError(f"{name} is not among the clients", name=name)

sys.meta_path.insert(0, Refuses())
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("module", "group"), [("tests.e2e.demo", "cluster"), ("images.build", "cluster"), ("tests.cluster.cli", None)]
)
def test_what_starts_without_the_full_environment_needs_no_more(module: str, group: str | None) -> None:
    with (environment.ROOT / "pyproject.toml").open("rb") as file:
        groups = tomllib.load(file)["dependency-groups"]
    names = [re.split(r"[<>=\[]", one)[0] for one in groups[group]] if group else []
    command = [sys.executable, "-c", WITH_THESE_ALONE, module, *names]
    done = subprocess.run(command, cwd=environment.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
