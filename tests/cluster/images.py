"""Images that hold one static binary, made and pushed without any image tool."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.errors import CommandError
from tests.cluster.shell import direct

_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """The same binary gives the same bytes, and so the same digest, every time."""

    layer: bytes
    config: bytes
    manifest: bytes

    @property
    def digest(self) -> str:
        return digest(self.manifest)

    def archive(self, reference: str) -> bytes:
        """An OCI layout as tar, which containerd imports under `reference`."""
        index = {
            "schemaVersion": 2,
            "manifests": [_descriptor(_MANIFEST, self.manifest, {"io.containerd.image.name": reference})],
        }
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": _json(index)}
        for blob in (self.layer, self.config, self.manifest):
            files[f"blobs/sha256/{digest(blob).removeprefix('sha256:')}"] = blob
        return _tar(files)

    def push(self, registry: str, name: str, tag: str) -> str:
        """To a registry that speaks plain HTTP; returns the reference to pull by."""
        for blob in (self.layer, self.config):
            if not _has(f"http://{registry}/v2/{name}/blobs/{digest(blob)}"):
                place = _send("POST", f"http://{registry}/v2/{name}/blobs/uploads/")
                joint = "&" if "?" in place else "?"
                _send("PUT", f"{place}{joint}digest={digest(blob)}", blob, "application/octet-stream")
        _send("PUT", f"http://{registry}/v2/{name}/manifests/{tag}", self.manifest, _MANIFEST)
        return f"{registry}/{name}:{tag}"


def of_binary(path: Path) -> Image:
    """An image whose only file is the program, its entrypoint, run as an unprivileged user."""
    program = f"/{path.name}"
    tar = _tar({path.name: path.read_bytes()}, mode=0o755)
    layer = gzip.compress(tar, compresslevel=1, mtime=0)
    config = _json(
        {
            "architecture": _GO_ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": [program], "User": "65534:65534"},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
        }
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _descriptor(_CONFIG, config),
        "layers": [_descriptor(_LAYER, layer)],
    }
    return Image(layer, config, _json(manifest))


def digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(kind: str, blob: bytes, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    described: dict[str, Any] = {"mediaType": kind, "digest": digest(blob), "size": len(blob)}
    return described | ({"annotations": annotations} if annotations else {})


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _has(url: str) -> bool:
    try:
        with direct.open(urllib.request.Request(url, method="HEAD"), timeout=30):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return False
        raise CommandError(f"HEAD {url}: {error}") from error
    except OSError as error:
        raise CommandError(f"HEAD {url}: {error}") from error


def _send(method: str, url: str, body: bytes = b"", kind: str = "") -> str:
    """The address that the registry answers with."""
    request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind} if kind else {})
    try:
        with direct.open(request, timeout=60) as response:
            return str(response.headers.get("Location", ""))
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(f"{method} {url}: {error} {error.read().decode(errors='replace')[:500]}") from error
    except OSError as error:
        raise CommandError(f"{method} {url}: {error}") from error
