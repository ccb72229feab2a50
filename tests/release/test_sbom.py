from __future__ import annotations

import json
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion

from release import inventory, sbom

STATUS = """\
Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13.dfsg-1
Description: compression library
 that goes on here
Status-of-nothing: no

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: tzdata
Status: install ok installed
Architecture: all
Version: 2026a
"""
FIELDS = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: Zlib

Files: debian/*
License: GPL-2+

License: Zlib
 as-is
"""
PROSE = "This database is in the public domain; see /usr/share/common-licenses/GPL-2.\n"
DIGEST = f"sha256:{7:064}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for package, text in (("zlib1g", FIELDS), ("tzdata", PROSE)):
        (tmp_path / "usr/share/doc" / package).mkdir(parents=True)
        (tmp_path / "usr/share/doc" / package / "copyright").write_text(text)
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    return tmp_path


def test_installed_packages_are_listed_with_the_licences_of_their_copyright_files(root: Path) -> None:
    found = [(each["name"], each["version"], each["licence"]) for each in inventory.debian(root)]
    assert found == [("zlib1g", "1:1.2.13.dfsg-1", "GPL-2+ AND Zlib"), ("tzdata", "2026a", "GPL-2")]


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        pytest.param("License-Expression: MIT\nLicense: other", "MIT", id="expression first"),
        pytest.param("License: Apache 2.0", "Apache 2.0", id="a name"),
        pytest.param("License: UNKNOWN\nClassifier: License :: OSI Approved :: ISC License", "ISC License", id="class"),
        pytest.param(f"License: {'x' * 100}", "", id="a whole text"),
        pytest.param("License: UNKNOWN", "", id="nothing known"),
    ],
)  # fmt: skip
def test_a_python_package_has_the_licence_that_its_metadata_names(tmp_path: Path, metadata: str, licence: str) -> None:
    (tmp_path / "METADATA").write_text(f"Metadata-Version: 2.4\nName: a\nVersion: 1\n{metadata}\n")
    assert inventory.licence(Distribution.at(tmp_path)) == licence


def test_the_document_fits_the_schema_and_names_every_package(root: Path) -> None:
    from cyclonedx.validation.json import JsonStrictValidator  # builds grammars of addresses for a second

    packages = [*inventory.debian(root), *inventory.python()]
    text = sbom.document("strata-operator", "1.2.3", DIGEST, packages, time=1_700_000_000)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    told = json.loads(text)
    assert told["metadata"]["component"]["purl"] == f"pkg:oci/strata-operator@{DIGEST}"
    purls = {component["purl"] for component in told["components"]}
    assert "pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1?arch=amd64" in purls
    assert any(purl.startswith("pkg:pypi/pytest@") for purl in purls)
    licences = {component["name"]: component.get("licenses") for component in told["components"]}
    assert licences["pytest"] == [{"license": {"id": "MIT"}}]


def test_the_same_image_gives_the_same_document(root: Path) -> None:
    packages = list(inventory.debian(root))
    first = sbom.document("strata-operator", "1.2.3", DIGEST, packages, time=1_700_000_000)
    assert first == sbom.document("strata-operator", "1.2.3", DIGEST, reversed(packages), time=1_700_000_000)
