from __future__ import annotations

from pathlib import Path

import pytest

from images import build


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Images that buildah was told to remove, of a checkout that has built none yet."""
    found: list[str] = []

    def buildah(command: str, image: str, *, check: bool) -> str:
        assert (command, check) == ("rmi", False)
        found.append(image)
        return ""

    monkeypatch.setattr(build, "BUILD", tmp_path)
    monkeypatch.setattr(build, "buildah", buildah)
    return found


def test_an_image_goes_once_the_same_checkout_has_built_the_next(removed: list[str]) -> None:
    build.replace("strata-operator", "localhost/strata-operator:a")
    build.replace("strata-operator", "localhost/strata-operator:a")
    build.replace("strata-engine", "localhost/strata-engine:x")
    assert removed == []
    build.replace("strata-operator", "localhost/strata-operator:b")
    assert removed == ["localhost/strata-operator:a"]
    build.replace("strata-operator", "localhost/strata-operator:b")
    assert removed == ["localhost/strata-operator:a"]
