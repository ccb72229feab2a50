"""The wheel with the tag of the oldest C library that it runs on."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from images.context import SOURCE_DATE_EPOCH
from release.state import ReleaseError

# glibc 2.34 and newer: RHEL 9, Ubuntu 22.04, Debian 12.
PLATFORM = "manylinux_2_34_x86_64"


def file_name(wheel: Path) -> str:
    """What a wheel for this machine is called once it has the tag."""
    return f"{wheel.name.rpartition('-')[0]}-{PLATFORM}.whl"


def tag(wheel: Path, target: Path) -> None:
    """Write ``wheel`` to ``target`` with the tag. Raises ReleaseError where that would not be true."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [
            sys.executable, "-m", "auditwheel", "repair", "--patcher", "none", "--plat", PLATFORM, "--only-plat",
            "--wheel-dir", folder, str(wheel),
        ]  # fmt: skip
        env = {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise ReleaseError(
                f"the wheel is not {PLATFORM}: {reason[0]}\nBuild the release on Debian 12, whose C library is "
                "old enough; `auditwheel show` says what the wheel links to"
            )
        [made] = Path(folder).glob("*.whl")
        shutil.move(made, target)
