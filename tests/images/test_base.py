from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from images import base
from images.buildah import BuildError


@pytest.mark.parametrize(
    ("given", "full"),
    [
        pytest.param("debian:bookworm-slim", "docker.io/library/debian:bookworm-slim", id="official image"),
        pytest.param("team/debian:12", "docker.io/team/debian:12", id="somebody's image"),
        pytest.param("registry.example.com/debian:12", "registry.example.com/debian:12", id="registry with a dot"),
        pytest.param("localhost:5000/debian:12", "localhost:5000/debian:12", id="registry with a port"),
        pytest.param("localhost/debian:12", "localhost/debian:12", id="local image"),
    ],
)
def test_a_short_name_gets_the_registry_that_it_means(given: str, full: str) -> None:
    assert base.full_name(given) == full


@pytest.fixture
def no_registry(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """No registry answers and no image is there; returns what is made instead, as (name, suite)."""
    made: list[tuple[str, str]] = []
    monkeypatch.setattr(base, "exists", lambda name: False)
    monkeypatch.setattr(base, "registry_answers", lambda name: False)
    monkeypatch.setattr(base, "make_debian", lambda name, suite: made.append((name, suite)))
    return made


def test_without_a_registry_debian_is_made_under_the_public_name(no_registry: list[tuple[str, str]]) -> None:
    assert base.ensure("debian:trixie-slim") == "docker.io/library/debian:trixie-slim"
    assert no_registry == [("docker.io/library/debian:trixie-slim", "trixie")]


def test_without_a_registry_another_base_is_an_error_that_says_what_works(no_registry: list[tuple[str, str]]) -> None:
    with pytest.raises(BuildError, match=r"docker.io/library/python:3.12-slim; .* debian:SUITE"):
        base.ensure("python:3.12-slim")
    assert not no_registry


def test_an_interrupted_base_leaves_no_archive_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def half(command: list[str], log: Path) -> None:
        Path(command[-1]).write_bytes(b"half an archive")
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "BUILD", tmp_path)
    monkeypatch.setattr(base, "logged", half)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    with pytest.raises(KeyboardInterrupt):
        base.make_debian("docker.io/library/debian:bookworm", "bookworm")
    assert not list(tmp_path.iterdir())
