"""What is in the images, how large they are, and what a node pulls for another build that differs in code alone."""

from __future__ import annotations

import json
import shutil
import urllib.request
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from images import base, context, registry
from images.build import build_one, only_one
from images.buildah import buildah, inside
from images.catalogue import ENGINE, IMAGES, OPERATOR, Image
from images.context import CONTEXT, Context
from release import sbom
from tests.cluster import Cluster
from tests.cluster.shell import direct

pytestmark = pytest.mark.cluster

MB = 1_000_000
MANIFEST = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
# Folders and programs of a build that an image has no use for. Triton compiles with the engine's gcc.
LOOK = """
import json, os, shutil
folders = ("/srv", "/context", "/tmp", "/root/.cache", "/var/lib/apt/lists", "/var/cache/apt", "/opt/strata/wheels")
files = [os.path.join(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names]
programs = [name for name in ("uv", "pip", "pip3", "make", "git", "curl", "gcc", "g++") if shutil.which(name)]
print(json.dumps([files, programs]))
"""
NEEDED = {ENGINE: ["gcc"]}
by_image = pytest.mark.parametrize("image", IMAGES, ids=[image.name for image in IMAGES])


def local(reference: str) -> str:
    """The name in the local storage of an image that was pushed."""
    return f"localhost/{reference.rpartition('/')[2]}"


def layers(reference: str) -> dict[str, int]:
    """Digest -> compressed bytes, as the registry has them."""
    host, _, rest = reference.partition("/")
    name, _, tag = rest.rpartition(":")
    request = urllib.request.Request(f"http://{host}/v2/{name}/manifests/{tag}", headers={"Accept": MANIFEST})
    with direct.open(request, timeout=30) as answer:
        manifest: dict[str, Any] = json.load(answer)
    return {layer["digest"]: layer["size"] for layer in manifest["layers"]}


@pytest.fixture(scope="module")
def changed(cluster: Cluster, images: dict[str, str]) -> Iterator[dict[str, str]]:
    """The images of a wheel that has one more module, in the registry beside those of this checkout."""
    before = CONTEXT / context.wheel()
    folder = CONTEXT / "wheels" / "changed"
    folder.mkdir()
    after = folder / before.name
    shutil.copyfile(before, after)
    with zipfile.ZipFile(after, "a") as opened:
        opened.writestr("strata/changed.py", "CHANGED = True\n")
    made: dict[str, str] = {}
    try:
        with only_one():
            for image in IMAGES:
                filled = Context(str(after.relative_to(CONTEXT)))
                made[image.name] = build_one(image, filled, base.DEFAULT)
        yield {name: registry.push(image, cluster.registry) for name, image in made.items()}
    finally:
        shutil.rmtree(folder)
        for built in made.values():
            buildah("rmi", built, check=False)


@by_image
def test_another_build_of_the_code_is_one_small_layer(
    images: dict[str, str], changed: dict[str, str], image: Image
) -> None:
    before, after = layers(images[image.name]), layers(changed[image.name])
    new = {digest: size for digest, size in after.items() if digest not in before}
    assert len(new) <= 1
    pulled = sum(new.values())
    print(f"{image.name}: {pulled / MB:.1f} of {sum(after.values()) / MB:,.1f} MB are pulled for another wheel")
    assert pulled < 100 * MB


def test_the_operators_image_is_small(images: dict[str, str]) -> None:
    compressed = sum(layers(images[OPERATOR.name]).values())
    unpacked = int(inside(local(images[OPERATOR.name]), DISK_USE))
    print(f"{OPERATOR.name}: {compressed / MB:.1f} MB compressed, {unpacked / MB:.1f} MB unpacked")
    assert compressed < unpacked < 250 * MB


DISK_USE = "import subprocess; print(subprocess.check_output(['du', '-sxB1', '/'], text=True).split()[0])"


@by_image
def test_nothing_of_the_build_is_left(images: dict[str, str], image: Image) -> None:
    files, programs = json.loads(inside(local(images[image.name]), LOOK))
    assert files == []
    assert programs == NEEDED.get(image, [])


@by_image
def test_nobody_is_root_who_is_not_told_to_be(images: dict[str, str], image: Image) -> None:
    """Models' pods and the agent are: the node's cache and its cards belong to root (docs/security.md)."""
    user = buildah("inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}}", local(images[image.name]))
    assert user == "65532:65532"


@by_image
def test_the_bill_of_materials_has_every_pin_and_debian_package(images: dict[str, str], image: Image) -> None:
    found = sbom.packages(local(images[image.name]))
    python = {f"{each['name'].lower().replace('_', '-').replace('.', '-')}=={each['version']}" for each in found}
    pins = {pin.partition(" ;")[0] for name in image.pins for pin in (CONTEXT / name).read_text().splitlines()}
    assert pins - python == set()
    debian = [each for each in found if each["kind"] == "deb"]
    assert {"libc6", "python3-minimal"} <= {each["name"] for each in debian}
    # Some copyright files name no licence in a form that a program reads.
    assert sum(bool(each["licence"]) for each in debian) > 0.8 * len(debian)
