"""What is in the images, how large they are, and what is new in another build that differs in code alone.

They need no cluster, but as long to be built."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator

import pytest

from images import base, context
from images.build import build, build_one, default_ca_bundle, only_one
from images.buildah import buildah, environment, inside
from images.catalogue import ALL, ENGINE, OPERATOR, Image
from images.context import CONTEXT, Context
from release import sbom

pytestmark = pytest.mark.cluster

MB = 1_000_000
# Folders and programs of a build that an image has no use for. Triton compiles with the engine's gcc.
LOOK = """
import json, os, shutil
folders = ("/srv", "/context", "/tmp", "/root/.cache", "/var/lib/apt/lists", "/var/cache/apt", "/opt/strata/wheels")
files = [os.path.join(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names]
programs = [name for name in ("uv", "pip", "pip3", "make", "git", "curl", "gcc", "g++") if shutil.which(name)]
print(json.dumps([files, programs]))
"""
NEEDED = {ENGINE.name: ["gcc"]}
by_image = pytest.mark.parametrize("image", ALL, ids=[image.name for image in ALL])


@pytest.fixture(scope="module")
def built() -> dict[str, str]:
    """Names in the local storage of this checkout's images."""
    return build(ALL)


@pytest.fixture(scope="module")
def changed(built: dict[str, str]) -> Iterator[dict[str, str]]:
    """Those of a wheel that has one more module."""
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
            for image in ALL:
                made[image.name] = build_one(
                    image, Context(str(after.relative_to(CONTEXT))), base.DEFAULT, default_ca_bundle()
                )
        yield made
    finally:
        shutil.rmtree(folder)
        for name, other in made.items():
            if other != built[name]:
                buildah("rmi", other, check=False)


def layers(image: str) -> dict[str, int]:
    """Digest -> bytes, uncompressed."""
    command = ["skopeo", "inspect", "--raw", f"containers-storage:{image}"]
    told = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout
    return {layer["digest"]: layer["size"] for layer in json.loads(told)["layers"]}


@by_image
def test_another_build_of_the_code_is_one_small_layer(
    built: dict[str, str], changed: dict[str, str], image: Image
) -> None:
    before, after = layers(built[image.name]), layers(changed[image.name])
    new = {digest: size for digest, size in after.items() if digest not in before}
    print(f"{image.name}: {sum(new.values()) / MB:.1f} of {sum(after.values()) / MB:,.1f} MB are new")
    assert len(new) <= 1
    assert sum(new.values()) < 100 * MB


def test_the_operators_image_is_small(built: dict[str, str]) -> None:
    size = sum(layers(built[OPERATOR.name]).values())
    print(f"{OPERATOR.name}: {size / MB:.1f} MB unpacked")
    assert size < 250 * MB


@by_image
def test_nothing_of_the_build_is_left(built: dict[str, str], image: Image) -> None:
    files, programs = json.loads(inside(built[image.name], LOOK))
    assert files == []
    assert programs == NEEDED.get(image.name, [])


@by_image
def test_nobody_is_root_who_is_not_told_to_be(built: dict[str, str], image: Image) -> None:
    """Models' pods and the agent are: the node's cache and its cards belong to root (docs/security.md)."""
    user = buildah("inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}}", built[image.name])
    assert user == "65532:65532"


@by_image
def test_the_bill_of_materials_has_every_pin_and_debian_package(built: dict[str, str], image: Image) -> None:
    found = sbom.packages(built[image.name])
    python = {f"{each['name'].lower().replace('_', '-').replace('.', '-')}=={each['version']}" for each in found}
    pins = {pin.partition(" ;")[0] for name in image.pins for pin in (CONTEXT / name).read_text().splitlines()}
    assert pins - python == set()
    debian = [each for each in found if each["kind"] == "deb"]
    assert {"libc6", "python3-minimal"} <= {each["name"] for each in debian}
    # Some copyright files name no licence in a form that a program reads.
    assert sum(bool(each["licence"]) for each in debian) > 0.8 * len(debian)
