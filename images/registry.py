"""Pushing to a registry."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

from images.buildah import BuildError, buildah, patient, say


def push(image: str, registry: str) -> str:
    """Push ``localhost/NAME:TAG``; returns its reference in the registry. Layers that it has are not sent again.

    Raises BuildError.
    """
    reference = in_registry(image, registry)
    started = time.monotonic()
    plain = speaks_plain_http(registry)
    # A plain-HTTP registry is on this machine or beside it: sending is cheap there, compressing 8 GB is not.
    # (CPU seconds for the engine's image: gzip 106, zstd at level 1 62, and the smaller of the two.)
    level = "1" if plain else "3"
    verify = f"--tls-verify={str(not plain).lower()}"
    compression = ("--compression-format", "zstd", "--compression-level", level)
    with patient(lambda: f"{reference}: pushing"):
        buildah("push", "--quiet", verify, *compression, image, f"docker://{reference}")
    say(f"{reference}: pushed in {time.monotonic() - started:.1f} s")
    return reference


def in_registry(image: str, registry: str) -> str:
    """``localhost/NAME:TAG`` -> ``REGISTRY/NAME:TAG``."""
    return f"{registry}/{image.removeprefix('localhost/')}"


def speaks_plain_http(registry: str) -> bool:
    """Whether it is a registry without TLS, as local ones are. Raises BuildError where none answers."""
    host = registry.partition("/")[0]
    for scheme in ("https", "http"):
        try:
            urllib.request.urlopen(f"{scheme}://{host}/v2/", timeout=5).close()  # noqa: S310  http(s)
        except urllib.error.HTTPError as error:
            # 401: a registry that wants a login, which buildah has or has not. Others: no registry's answer.
            if error.code == 401:
                return scheme == "http"
        except OSError:
            continue
        else:
            return scheme == "http"
    raise BuildError(f"no image registry answers at {host}: is the address right, is the cluster up?")
