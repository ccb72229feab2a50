"""Python and the packages that serving needs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from strata.doctor.finding import Finding, fail, ok, warn
from strata.doctor.packages import SERVE


def check_software(*, has_gpu: bool, version_of: Callable[[str], str] = version) -> Iterator[Finding]:
    """``version_of`` raises PackageNotFoundError for what is not installed; nothing is imported."""
    yield ok("python", f"{platform.python_version()} ({platform.machine()})")
    found, missing = {}, []
    for name in SERVE:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield fail("packages", f"not installed: {', '.join(missing)}", "pip install 'strata-engine[serve]'")
    else:
        yield ok("packages", ", ".join(f"{name} {number}" for name, number in found.items()))
    torch = found.get("torch", "")
    if has_gpu and "+cpu" in torch:
        advice = "install torch with CUDA: pip install --force-reinstall torch, without an index for CPUs"
        yield warn("torch", f"{torch} is built for CPUs, and there is a card", advice)
