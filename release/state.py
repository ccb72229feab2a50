"""Whether the checkout may become a release, and what its notes are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from images.buildah import ROOT


class ReleaseError(Exception):
    """A release cannot be made; the message says what is wrong and what to do."""


def check(version: str, root: Path = ROOT) -> None:
    """Raises ReleaseError with everything that keeps the checkout from being the release ``version``."""
    found = [*_version_problems(version), *_chart_problems(version, root), *_git_problems(version, root)]
    try:
        notes((root / "CHANGELOG.md").read_text(), version)
    except ReleaseError as error:
        found.append(str(error))
    if found:
        listed = "".join(f"\n  - {problem}" for problem in found)
        raise ReleaseError(f"this checkout is not the release {version}:{listed}\nSNAPSHOT=1 builds it all the same.")


def notes(changelog: str, version: str | None) -> str:
    """The section of a version, or of what is unreleased. Raises ReleaseError where there is none, or nothing in it."""
    heading = r"Unreleased\]" if version is None else rf"{re.escape(version)}\] - \d{{4}}-\d\d-\d\d"
    found = re.search(rf"(?ms)^## \[{heading}\n(.*?)(?=^## \[|\Z)", changelog)
    if found is None:
        what = "## [Unreleased]" if version is None else f"## [{version}] - YYYY-MM-DD"
        raise ReleaseError(
            f"CHANGELOG.md has no section `{what}`; write it there: what was `## [Unreleased]` becomes the version's"
        )
    if not re.search(r"(?m)^- ", found[1]):
        raise ReleaseError(f"the section of {version or 'what is unreleased'} in CHANGELOG.md lists no change")
    return found[1].strip() + "\n"


def _version_problems(version: str) -> list[str]:
    # What both a wheel and a chart may be called; 1.0.0rc1 is none of a chart's, 1.0.0-rc.1 none of a wheel's.
    if re.fullmatch(r"\d+\.\d+\.\d+", version):
        return []
    return [f"the version {version!r} is not three numbers; correct __version__ in engine/strata/__init__.py"]


def _chart_problems(version: str, root: Path) -> list[str]:
    stale = [
        str(path.relative_to(root))
        for path in sorted((root / "charts").glob("*/Chart.yaml"))
        if not re.search(rf"(?m)^version: {re.escape(version)}$", path.read_text())
    ]
    return [f"{path} has another version; `make manifests golden`, and commit" for path in stale]


def _git_problems(version: str, root: Path) -> list[str]:
    tag = f"v{version}"
    changed = _git(root, "status", "--porcelain").splitlines()
    found = []
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        names = ", ".join(line[3:] for line in changed[:3])
        found.append(f"files differ from the commit ({names}{more}); commit them, or put them back")
    here = _git(root, "rev-parse", "HEAD").strip()
    there = _git(root, "rev-parse", "--quiet", "--verify", f"{tag}^{{commit}}", check=False).strip()
    if not there:
        found.append(f"no tag {tag}; `git tag -a {tag} -m 'Strata {version}'` once the rest is right")
    elif there != here:
        found.append(
            f"the tag {tag} is of commit {there[:12]}, and this is {here[:12]}; `git checkout {tag}` for that release, "
            "or raise __version__ in engine/strata/__init__.py for another"
        )
    return found


def commit_time(root: Path = ROOT) -> int:
    """Seconds since 1970: the time that generated files bear, so that the same commit makes the same bytes."""
    return int(_git(root, "log", "-1", "--format=%ct"))


def _git(root: Path, *arguments: str, check: bool = True) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ReleaseError("git is not installed: apt-get install git") from error
    if check and done.returncode != 0:
        raise ReleaseError(f"`git {' '.join(arguments)}` failed in {root}: {done.stderr.strip()}")
    return done.stdout
