"""Runs inside an image, where it prints as JSON which Debian and Python packages there are. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path("/")


def debian(root: Path = ROOT) -> Iterator[dict[str, str]]:
    """Installed packages, with the licences that their copyright files name."""
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", paragraph))
        if fields.get("Status", "").endswith(" installed"):
            copyright_ = root / "usr/share/doc" / fields["Package"] / "copyright"
            yield {
                "kind": "deb",
                "name": fields["Package"],
                "version": fields["Version"],
                "architecture": fields["Architecture"],
                "licence": " AND ".join(licences(copyright_)),
            }


def licences(copyright_: Path) -> list[str]:
    """Names of the licences in a Debian copyright file: of its fields, else those whose text it refers to."""
    if not copyright_.exists():
        return []
    text = copyright_.read_text(errors="replace")
    named = re.findall(r"(?m)^License: *(\S.*)$", text) or re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", text)
    return sorted({name.strip() for name in named})


def python() -> Iterator[dict[str, str]]:
    """Distributions of the interpreter that runs this."""
    for found in distributions():
        yield {"kind": "pypi", "name": found.name, "version": found.version, "licence": licence(found)}


def licence(found: Distribution) -> str:
    """What its metadata says: an SPDX expression, a licence's name, or its classifiers."""
    told = found.metadata.json
    if "license_expression" in told:
        return str(told["license_expression"])
    name = str(told.get("license", "")).strip()
    if name not in ("", "UNKNOWN") and "\n" not in name and len(name) < 80:  # some have the whole text there
        return name
    return " AND ".join(
        line.rpartition(" :: ")[2] for line in told.get("classifier", []) if line.startswith("License :: ")
    )


if __name__ == "__main__":
    print(json.dumps([*debian(), *python()]))
