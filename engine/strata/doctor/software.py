"""Python, the packages that serving needs, and the library of CPU kernels."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from strata.doctor.finding import Finding, fail, ok, warn
from strata.doctor.packages import SERVE, install_hint
from strata.errors import HardwareError
from strata.native.library import variants


def check_software(
    *,
    has_gpu: bool,
    version_of: Callable[[str], str] = version,
    kernels_of: Callable[[], Sequence[str]] = variants,
) -> Iterator[Finding]:
    """``version_of`` raises PackageNotFoundError for what is not installed; no package is imported. ``kernels_of``
    names the variants of CPU kernels that run here, slowest first; it raises HardwareError where the library does not
    load."""
    yield ok("python", f"{platform.python_version()} ({platform.machine()})")
    found, missing = {}, []
    for name in SERVE:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield fail("packages", f"not installed: {', '.join(missing)}", install_hint("serve"))
    else:
        yield ok("packages", ", ".join(f"{name} {number}" for name, number in found.items()))
    torch = found.get("torch", "")
    if has_gpu and "+cpu" in torch:
        advice = "install torch with CUDA: pip install --force-reinstall torch, without an index for CPUs"
        yield warn("torch", f"{torch} is built for CPUs, and there is a card", advice)
    yield _kernels(kernels_of)


def _kernels(kernels_of: Callable[[], Sequence[str]]) -> Finding:
    try:
        *_, fastest = kernels_of()
    except HardwareError as error:
        advice = "install a wheel for this platform, or run `make native` in a checkout"
        return warn("CPU kernels", f"no experts on the CPU, and int4 is packed slowly: {error}", advice)
    if fastest == "scalar":
        return warn("CPU kernels", "scalar alone", "experts on the CPU want one with AVX2; use another, or a card")
    return ok("CPU kernels", f"{fastest} for experts on the CPU")
