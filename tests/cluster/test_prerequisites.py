from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import prerequisites
from tests.cluster.errors import PrerequisiteError


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine, seen by root, on which only `ip` is installed; programs go into the returned folder."""
    monkeypatch.setattr(prerequisites, "_SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(prerequisites, "PACKAGES", {"runc": "runc", "ip": "iproute2"})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    install(tmp_path, "ip", "")
    return tmp_path


def install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_what_is_missing_is_installed(bare: Path) -> None:
    install(bare, "apt-get", f'echo "$@" >> {bare}/asked; cp {bare}/ip {bare}/runc')
    said: list[str] = []
    prerequisites.check(said.append)
    assert said == ["installing with apt-get: runc"]
    assert (bare / "asked").read_text() == "install --yes --no-install-recommends runc\n"


def test_package_lists_are_fetched_when_the_package_is_not_known(bare: Path) -> None:
    update, known = f"[ $1 = update ] && exec touch {bare}/lists", f"[ -e {bare}/lists ] || exit 100"
    install(bare, "apt-get", f"{update}; {known}; cp {bare}/ip {bare}/runc")
    prerequisites.check(lambda _: None)
    assert (bare / "runc").exists()


def test_a_failed_installation_says_why(bare: Path) -> None:
    install(bare, "apt-get", "echo 'E: Unable to locate package runc' >&2; exit 100")
    with pytest.raises(PrerequisiteError, match=r"did not install runc(.|\n)*Unable to locate package runc"):
        prerequisites.check(lambda _: None)


def test_without_apt_the_packages_are_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bare))
    with pytest.raises(PrerequisiteError, match="missing on this machine, by their Debian names: runc"):
        prerequisites.check(lambda _: None)


def test_other_users_than_root_are_told_to_use_sudo(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(PrerequisiteError, match="sudo"):
        prerequisites.check(lambda _: None)


def test_other_systems_than_linux_are_refused(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(PrerequisiteError, match="darwin"):
        prerequisites.check(lambda _: None)
