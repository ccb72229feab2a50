"""Asks an advisory service for known faults of the pinned packages: ``make audit``.

It needs the network, so it is no part of the tests. Exit code 0: every package was looked up, and none has a known
fault; 1: some have, or could not be looked up; 2: no service answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINS = (ROOT / "constraints.txt", ROOT / "images" / "strata-gateway" / "requirements.txt")
UNREACHABLE = (
    "no advisory was read: there is no network here, or the package index is a mirror that has none. Run `make audit` "
    'where the Python Package Index itself can be reached, or the OSV service with AUDIT="-s osv"'
)


def main(arguments: Sequence[str], pins: Path = PINS[0]) -> int:
    """Run pip-audit over the pins; ``arguments`` are its own. Gives the exit code."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += ["--requirement", str(pins), "--format", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        # What it ends with is the reason: a traceback where the network fails, else its own words.
        print(*done.stderr.strip().splitlines()[-1:], UNREACHABLE, sep="\n", file=sys.stderr)
        return 2
    if not any("vulns" in package for package in packages):
        print(UNREACHABLE, file=sys.stderr)
        return 2
    faults = list(findings(packages))
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(packages)} packages, {len(faults)} to look at")
    return 1 if faults else 0


def findings(packages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each known fault, and for each package that could not be looked up."""
    for package in packages:
        if "vulns" not in package:
            yield f"{package['name']}: {package['skip_reason']}"
        for fault in package.get("vulns", ()):
            fixed = ", ".join(fault["fix_versions"]) or "no version"
            yield f"{package['name']} {package['version']}: {fault['id']}, mended in {fixed}"


if __name__ == "__main__":
    sys.exit(max(main(sys.argv[1:], pins) for pins in PINS))
