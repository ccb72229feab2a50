from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import strata
from images.buildah import ROOT
from release import state
from release.state import ReleaseError

CHANGELOG = """# Changelog

## [Unreleased]

- Of tomorrow.

## [1.2.3] - 2026-12-01

### Added

- Of today.

## [1.2.2] - 2026-11-01

Nothing is listed.
"""


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)


def commit(root: Path, text: str) -> None:
    (root / "CHANGELOG.md").write_text(text)
    chart = root / "charts" / "strata" / "Chart.yaml"
    chart.parent.mkdir(parents=True, exist_ok=True)
    chart.write_text('apiVersion: v2\nversion: 1.2.3\nappVersion: "1.2.3"\n')
    git(root, "add", "-A")
    git(root, "commit", "-m", "change")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One that is the release 1.2.3."""
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, CHANGELOG)
    git(tmp_path, "tag", "-a", "v1.2.3", "-m", "Strata 1.2.3")
    return tmp_path


def test_a_clean_checkout_of_the_tag_is_the_release(checkout: Path) -> None:
    state.check("1.2.3", checkout)


def test_files_that_differ_are_named(checkout: Path) -> None:
    (checkout / "new.py").touch()
    with pytest.raises(ReleaseError, match=r"files differ from the commit \(new.py\); commit them"):
        state.check("1.2.3", checkout)


def test_a_tag_of_another_commit_says_both_ways_out(checkout: Path) -> None:
    commit(checkout, CHANGELOG.replace("today", "today, corrected"))
    with pytest.raises(ReleaseError, match=r"the tag v1.2.3 is of commit \w+, .*`git checkout v1.2.3`.* or raise"):
        state.check("1.2.3", checkout)


def test_all_that_is_wrong_is_told_at_once(checkout: Path) -> None:
    (checkout / "new.py").touch()
    with pytest.raises(ReleaseError) as error:
        state.check("1.3.0", checkout)
    told = str(error.value)
    assert "files differ" in told
    assert "charts/strata/Chart.yaml has another version; `make manifests golden`" in told
    assert "no tag v1.3.0; `git tag -a v1.3.0" in told
    assert "no section `## [1.3.0] - YYYY-MM-DD`" in told


@pytest.mark.parametrize("version", ["1.2", "1.2.3rc1", "1.2.3-rc.1", "v1.2.3"])
def test_a_version_that_wheel_and_chart_cannot_both_have_is_refused(checkout: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match="is not three numbers"):
        state.check(version, checkout)


def test_a_folder_without_git_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=f"failed in {tmp_path}"):
        state.check("1.2.3", tmp_path)


def test_notes_are_the_section_of_the_version_alone() -> None:
    assert state.notes(CHANGELOG, "1.2.3") == "### Added\n\n- Of today.\n"
    assert state.notes(CHANGELOG, None) == "- Of tomorrow.\n"


def test_a_section_without_a_change_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"the section of 1.2.2 in CHANGELOG.md lists no change"):
        state.notes(CHANGELOG, "1.2.2")


def test_the_projects_own_changelog_and_version_will_do() -> None:
    assert state.notes((ROOT / "CHANGELOG.md").read_text(), None)
    assert not state._version_problems(strata.__version__)
