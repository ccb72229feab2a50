"""Pushing to a registry."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

from images.buildah import BuildError, buildah, say


def push(image: str, registry: str) -> str:
    """Push ``localhost/NAME:TAG``; returns its reference in the registry. Layers that it has are not sent again.

    Raises BuildError.
    """
    reference = in_registry(image, registry)
    started = time.monotonic()
    plain = speaks_plain_http(registry)
    # A plain-HTTP registry is on this machine or beside it: compressing 7 GB takes two cores longer than sending it.
    how = ("--tls-verify=false", "--disable-compression") if plain else ("--tls-verify=true",)
    buildah("push", "--quiet", *how, image, f"docker://{reference}")
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
            urllib.request.urlopen(f"{scheme}://{host}/v2/", timeout=5).close()
        except urllib.error.HTTPError as error:
            # 401: a registry that wants a login, which buildah has or has not. Others: no registry's answer.
            if error.code == 401:
                return scheme == "http"
        except OSError:
            continue
        else:
            return scheme == "http"
    raise BuildError(f"no image registry answers at {host}: is the address right, is the cluster up?")
