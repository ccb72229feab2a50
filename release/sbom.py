"""What is in an image, as a bill of materials in CycloneDX's JSON: Debian and Python packages, versions, licences."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from images.buildah import inside
from release import inventory

Package = dict[str, str]


def packages(image: str) -> list[Package]:
    """Of an image in the local storage, as ``inventory`` finds them inside. Raises BuildError."""
    found: list[Package] = json.loads(inside(image, Path(inventory.__file__).read_text()))
    return found


def document(name: str, version: str, digest: str, found: Iterable[Package], time: int) -> str:
    """The document about the image ``name@digest``; the same arguments give the same text."""
    image = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"{name}@{digest}",
        purl=PackageURL("oci", name=name, version=digest),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(image.purl)), components=map(component, found))
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(time, UTC)
    bom.register_dependency(image, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def component(package: Package) -> Component:
    """One package, under the address by which scanners know it (purl)."""
    kind, name, version = package["kind"], package["name"], package["version"]
    if kind == "deb":
        purl = PackageURL("deb", "debian", name, version, qualifiers={"arch": package["architecture"]})
    else:
        purl = PackageURL("pypi", name=name, version=version)
    licence = package["licence"]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
    )
