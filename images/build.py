"""Builds the two images with buildah and pushes them to a registry: ``python3 -m images.build --help``.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import base, context, registry
from images.buildah import BUILD, ROOT, BuildError, buildah, exists, logged, say

ENGINE, OPERATOR = "strata-engine", "strata-operator"


@dataclass(frozen=True, slots=True)
class Images:
    """References as a pod names them; empty for an image that was not asked for."""

    engine: str = ""
    operator: str = ""


def default_ca_bundle() -> Path | None:
    """A machine behind a proxy with certificates of its own names them in the usual variable."""
    named = os.environ.get("SSL_CERT_FILE")
    return Path(named) if named else None


def build(
    *,
    engine: bool = True,
    operator: bool = True,
    to: str = "",
    push: bool = False,
    tag: str = "",
    base_image: str = base.DEFAULT,
    ca_bundle: Path | None = None,
) -> Images:
    """Build images; with ``to`` (HOST:PORT) the references name that registry, with ``push`` they are pushed there.

    Raises BuildError.
    """
    ca_bundle = ca_bundle or default_ca_bundle()
    if ca_bundle and not ca_bundle.is_file():
        raise BuildError(f"the CA bundle {ca_bundle} is not a file")
    with only_one():
        filled = context.fill()
        # The small one first: what is wrong with both shows early.
        wanted = [name for name, want in ((OPERATOR, operator), (ENGINE, engine)) if want]
        made = {name: build_one(name, filled, base_image, ca_bundle, tag) for name in wanted}
    if to:
        reference = registry.push if push else registry.in_registry
        made = {name: reference(image, to) for name, image in made.items()}
    return Images(engine=made.get(ENGINE, ""), operator=made.get(OPERATOR, ""))


def build_one(name: str, filled: context.Context, base_image: str, ca_bundle: Path | None, tag: str) -> str:
    """The image's local name, ``localhost/NAME:TAG``; built if the local storage lacks it."""
    image = f"localhost/{name}:{filled.tag(name, base_image)}"
    if exists(image):
        say(f"{name}: unchanged")
    else:
        say(f"{name}: building")
        started = time.monotonic()
        values = {
            "BASE": base.ensure(base_image),
            "UV_FLAGS": "--cache-dir /srv",
            "MODEL_WHEEL": context.MODEL_WHEEL,
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
    replace(name, image)
    if tag:
        named = f"localhost/{name}:{tag}"
        buildah("tag", image, named)
        return named
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
    for image in buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
        if re.search(rf"/({ENGINE}|{OPERATOR}):", image) or image == base.full_name(base.DEFAULT):
            buildah("rmi", "--force", image, check=False)
    buildah("rmi", "--prune", "--force", check=False)
    say("images removed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m images.build", description=(__doc__ or "").partition(":")[0])
    add = parser.add_argument
    add("--engine", action="store_true", help="only the engine's image")
    add("--operator", action="store_true", help="only the operator's image")
    add("--registry", default="", metavar="HOST:PORT", help="where the images will be pulled from")
    add("--push", action="store_true", help="push them there")
    add("--tag", default="", help="default: a digest of what the image is made from")
    add("--base", default=base.DEFAULT, metavar="IMAGE", help="default: %(default)s")
    add("--ca-bundle", type=Path, metavar="PATH", help="certificates that downloads trust; default: $SSL_CERT_FILE")
    add("--remove", action="store_true", help="delete the images and their layers from this machine")
    given = parser.parse_args()
    if given.push and not given.registry:
        parser.error("--push needs --registry HOST:PORT")
    both = given.engine == given.operator
    try:
        if given.remove:
            remove()
            return
        images = build(
            engine=both or given.engine,
            operator=both or given.operator,
            to=given.registry,
            push=given.push,
            tag=given.tag,
            base_image=given.base,
            ca_bundle=given.ca_bundle,
        )
    except BuildError as error:
        sys.exit(f"error: {error}")
    for name, image in ((ENGINE, images.engine), (OPERATOR, images.operator)):
        if image:
            print(f"{name} {image}")


if __name__ == "__main__":
    main()
