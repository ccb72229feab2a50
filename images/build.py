"""Builds the project's images with buildah and pushes them to a registry: ``python3 -m images.build --help``.

Without ``--tag``, an image is tagged with a digest of what it is made from: unchanged, it is neither built nor pushed
again; changed, whoever references it rolls it out.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from images import base, context, registry
from images.buildah import BUILD, ROOT, BuildError, buildah, exists, logged, say
from images.catalogue import ALL, IMAGES, OPTIONAL, Image


def default_ca_bundle() -> Path | None:
    """A machine behind a proxy with certificates of its own names them in the usual variable."""
    named = os.environ.get("SSL_CERT_FILE")
    return Path(named) if named else None


def build(
    wanted: Sequence[Image] = IMAGES,
    *,
    to: str = "",
    push: bool = False,
    tag: str = "",
    base_image: str = base.DEFAULT,
    ca_bundle: Path | None = None,
) -> dict[str, str]:
    """Build images; returns their references as a pod names them, by the images' names.

    With ``to`` (HOST:PORT) the references name that registry, with ``push`` they are pushed there. Raises BuildError.
    """
    ca_bundle = ca_bundle or default_ca_bundle()
    if ca_bundle and not ca_bundle.is_file():
        raise BuildError(f"the CA bundle {ca_bundle} is not a file")
    with only_one():
        filled = context.fill()
        made = {}
        for image in wanted:
            made[image.name] = local = build_one(image, filled, base_image, ca_bundle)
            replace(image.name, local)
            if tag:
                made[image.name] = f"localhost/{image.name}:{tag}"
                buildah("tag", local, made[image.name])
    if to:
        reference = registry.push if push else registry.in_registry
        made = {name: reference(local, to) for name, local in made.items()}
    return made


def build_one(described: Image, filled: context.Context, base_image: str, ca_bundle: Path | None) -> str:
    """The image's local name, ``localhost/NAME:TAG``; built if the local storage lacks it."""
    name = described.name
    image = f"localhost/{name}:{filled.tag(described, base_image)}"
    if exists(image):
        say(f"{name}: unchanged")
    else:
        say(f"{name}: building")
        started = time.monotonic()
        values = {
            "BASE": base.ensure(base_image),
            "UV_FLAGS": "--cache-dir /srv",
            "MODEL_WHEEL": described.model,
            "WHEEL": filled.wheel,
        }
        if ca_bundle:
            shutil.copyfile(ca_bundle, context.CONTEXT / "ca.crt")
            values["SSL_CERT_FILE"] = "/context/ca.crt"
        arguments = [part for key, value in values.items() for part in ("--build-arg", f"{key}={value}")]
        file = ROOT / "images" / name / "Containerfile"
        command = ["buildah", "bud", "--layers", "--pull=never", "--volume", f"{context.uv_cache()}:/srv"]
        command += [*arguments, "--file", str(file), "--tag", image, str(context.CONTEXT)]
        logged(command, BUILD / f"{name}.log")
        say(f"{name}: built in {time.monotonic() - started:.0f} s")
    return image


def replace(name: str, image: str) -> None:
    """Remove the image that this checkout built before this one, with the layers that no other image has. What other
    checkouts built stays, and so does one that was given a name with ``--tag``."""
    newest = BUILD / f"{name}.image"
    before = newest.read_text().strip() if newest.exists() else image
    if before != image:
        buildah("rmi", before, check=False)  # somebody may have removed it, or use it
    context.write(newest, [image])


@contextmanager
def only_one() -> Iterator[None]:
    """Two builds of one checkout would write the same context: the second waits."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove() -> None:
    """Delete the images, their layers and the base from the local storage."""
    if shutil.which("buildah") is None:
        return
    ours = "|".join(image.name for image in ALL)
    for image in buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
        if re.search(rf"/({ours}):", image) or image == base.full_name(base.DEFAULT):
            buildah("rmi", "--force", image, check=False)
    buildah("rmi", "--prune", "--force", check=False)
    say("images removed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m images.build", description=(__doc__ or "").partition(":")[0])
    add = parser.add_argument
    for image in ALL:
        words = f"only {image.name}" + (", which is not built otherwise" if image in OPTIONAL else "")
        add(f"--{image.short}", dest="only", action="append_const", const=image, help=words)
    add("--registry", default="", metavar="HOST:PORT", help="where the images will be pulled from")
    add("--push", action="store_true", help="push them there")
    add("--tag", default="", help="default: a digest of what the image is made from")
    add("--base", default=base.DEFAULT, metavar="IMAGE", help="default: %(default)s")
    add("--ca-bundle", type=Path, metavar="PATH", help="certificates that downloads trust; default: $SSL_CERT_FILE")
    add("--remove", action="store_true", help="delete the images and their layers from this machine")
    given = parser.parse_args()
    if given.push and not given.registry:
        parser.error("--push needs --registry HOST:PORT")
    try:
        if given.remove:
            remove()
            return
        images = build(
            given.only or IMAGES,
            to=given.registry,
            push=given.push,
            tag=given.tag,
            base_image=given.base,
            ca_bundle=given.ca_bundle,
        )
    except BuildError as error:
        sys.exit(f"error: {error}")
    for name, reference in images.items():
        print(f"{name} {reference}")


if __name__ == "__main__":
    main()
