"""An image as an OCI archive: a file that containerd and skopeo read, with the digest by which it is pulled."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from images.buildah import buildah, patient

# Who loads an image without a registry finds it under this name: a reference to it never leaves the machine.
HOST = "localhost"


def image_id(image: str) -> str:
    """Digest of the configuration of an image in the local storage: it changes with any layer."""
    return buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", image)


def write(image: str, reference: str, target: Path) -> None:
    """Write an image of the local storage, under that name, to ``target``. Raises BuildError."""
    # zstd, which containerd 1.5 and later read, is smaller than gzip and in half the time.
    compression = ("--compression-format", "zstd", "--compression-level", "3")
    with patient(lambda: f"{target.name.lstrip('.')}: compressing"):
        buildah("push", "--quiet", "--format", "oci", *compression, image, f"oci-archive:{target}:{reference}")


def digest(archive: Path) -> str:
    """``sha256:...`` of the one image in an archive."""
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        assert index is not None, f"{archive} has no index"
        [manifest] = json.load(index)["manifests"]
    return str(manifest["digest"])
