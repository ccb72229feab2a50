"""`strata version`: what is installed."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import strata

EPILOG = """examples:
  strata version
  strata version --json      for a bug report: Python, torch and the revision as well
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its option."""
    parser = commands.add_parser("version", help="print the version", description="Print the version.", epilog=EPILOG)
    parser.set_defaults(run=run)
    parser.add_argument(
        "--json", action="store_true", help="version, Python, torch and git revision as JSON (default: the version)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    if not arguments.json:
        print(f"strata {strata.__version__}")
        return 0
    facts = {
        "version": strata.__version__,
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "revision": revision(Path(strata.__file__).parent),
    }
    print(json.dumps(facts, indent=1))
    return 0


def revision(package: Path) -> str | None:
    """The commit that the package comes from: of the git tree that it lies in, or the one that pip installed; None
    where neither is known."""
    return _revision_of_tree(package) or _revision_of_install()


def _revision_of_tree(package: Path) -> str | None:
    import subprocess

    # A virtual environment may lie in another project's tree: only files that git knows are of its commit.
    command = ["git", "-C", str(package), "ls-files", "--error-unmatch", "__init__.py"]
    try:
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        command = ["git", "-C", str(package), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _revision_of_install() -> str | None:
    """What pip noted of an address like git+https://... (PEP 610)."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        note = distribution("strata-engine").read_text("direct_url.json")
        return str(json.loads(note)["vcs_info"]["commit_id"]) if note else None
    except (PackageNotFoundError, ValueError, LookupError):
        return None


def _installed(name: str) -> str | None:
    """The version of a package, which is not imported."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
