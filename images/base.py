"""The base image: pulled, or made here under the same name where no image registry answers."""

from __future__ import annotations

import re
import shutil
import time
import urllib.error
import urllib.request

from images.buildah import BUILD, BuildError, buildah, exists, logged, say

DEFAULT = "debian:bookworm-slim"
# What the public -slim image leaves out as well.
UNWANTED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")


def full_name(base: str) -> str:
    """``debian:bookworm-slim`` -> ``docker.io/library/debian:bookworm-slim``."""
    first, _, rest = base.partition("/")
    if not rest:
        return f"docker.io/library/{base}"
    return base if "." in first or ":" in first or first == "localhost" else f"docker.io/{base}"


def ensure(base: str) -> str:
    """The base image's full name, once the local storage has it. Raises BuildError."""
    name = full_name(base)
    if exists(name):
        return name
    started = time.monotonic()
    if registry_answers(name):
        say(f"base image {base}: pulling")
        buildah("pull", "--quiet", name)
        say(f"base image {base}: pulled in {time.monotonic() - started:.0f} s")
        return name
    debian = re.fullmatch(r"docker\.io/library/debian:([a-z]+)(-slim)?", name)
    if debian is None:
        raise BuildError(f"no registry answers for {name}; without one, only debian:SUITE and debian:SUITE-slim work")
    say(f"base image {base}: no image registry answers, so it is made from Debian's packages (mmdebstrap)")
    make_debian(name, debian[1])
    say(f"base image {base}: made in {time.monotonic() - started:.0f} s, kept until `make clean-cache`")
    return name


def registry_answers(image: str) -> bool:
    """Whether the image's registry can be reached; any HTTP answer counts. Decides within seconds."""
    host = image.split("/")[0]
    host = "registry-1.docker.io" if host == "docker.io" else host
    try:
        urllib.request.urlopen(f"https://{host}/v2/", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def make_debian(name: str, suite: str) -> None:
    """A minimal Debian without documentation and translations. Raises BuildError."""
    if shutil.which("mmdebstrap") is None:
        raise BuildError("mmdebstrap is not installed: apt-get install mmdebstrap")
    tar = BUILD / f"{suite}.tar"
    options = [f"--dpkgopt=path-exclude={path}" for path in UNWANTED]
    options.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    # Merged from the start: the package that merges afterwards brings 50 MB of Perl.
    options += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--include=usr-is-merged"]
    container = ""
    try:
        logged(["mmdebstrap", "--variant=minbase", *options, suite, str(tar)], BUILD / "base.log")
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, tar, "/")
        buildah("config", "--cmd", "bash", container)
        buildah("commit", "--quiet", container, name)
    finally:
        tar.unlink(missing_ok=True)
        if container:
            buildah("rm", container, check=False)
