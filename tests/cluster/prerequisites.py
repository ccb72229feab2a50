"""What the machine must have before a cluster can run on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster.errors import PrerequisiteError
from tests.cluster.node import CNI_PLUGINS

# What is looked for -> the Debian and Ubuntu package that brings it.
PACKAGES = {
    "runc": "runc",
    str(CNI_PLUGINS / "ptp"): "containernetworking-plugins",
    "nft": "nftables",
    "iptables": "iptables",  # the CNI port map uses it, and kube-router
    "ipset": "ipset",  # kube-router alone
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> list[str]:
    """A cluster's processes see the system's PATH, not the caller's, so that is where to look."""

    def is_there(what: str) -> bool:
        return Path(what).exists() if what.startswith("/") else shutil.which(what, path=_SYSTEM_PATH) is not None

    return sorted({package for what, package in PACKAGES.items() if not is_there(what)})


def check(report: Callable[[str], None] = print) -> None:
    """Installs missing packages where apt-get can; PrerequisiteError says what else is to be done."""
    if sys.platform != "linux":
        raise PrerequisiteError(f"a cluster runs on Linux only, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise PrerequisiteError("a cluster needs root (namespaces, mounts, control groups): run this with sudo")
    missing = missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise PrerequisiteError(
            f"missing on this machine, by their Debian names: {' '.join(missing)}; install them "
            f"(network plugins are looked for in {CNI_PLUGINS}) and run this again"
        )
    report(f"installing with apt-get: {' '.join(missing)}")
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    # Package lists may be absent or old: fetch them only if it does not work without.
    done = _quietly(install)
    if done.returncode != 0:
        _quietly(["apt-get", "update"])
        done = _quietly(install)
    still = missing_packages()
    if still:
        said = "\n".join(f"    {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-10:])
        raise PrerequisiteError(f"apt-get did not install {' '.join(still)}; install them and run this again:\n{said}")


def _quietly(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
