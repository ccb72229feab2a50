"""The build context: uv, the pinned requirements and the wheel. What is in it decides an image's tag."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from images.buildah import BUILD, ROOT, BuildError, patient
from images.catalogue import IMAGES, OPTIONAL, Image

CONTEXT = BUILD / "context"
TORCH = "torch.txt"
# Its pins, for a layer of their own; nvidia-ml-py is small, and the operator's image has it too.
LARGE = re.compile(r"^(torch|triton|nvidia-(?!ml-py)|cuda-)")
# Every file in a wheel bears this time, so that the same sources make the same bytes.
SOURCE_DATE_EPOCH = "1577836800"
PLAIN = ("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")


@dataclass(frozen=True, slots=True)
class Context:
    """A filled build context."""

    wheel: str  # its path in the context, which holds its digest

    def tag(self, image: Image, base: str) -> str:
        """Digest of everything that the image is made from."""
        state = hashlib.sha256(f"{base} {self.wheel if image.extras else ''}{image.model}".encode())
        for path in (*sources(image), *(CONTEXT / name for name in image.pins)):
            state.update(path.read_bytes())
        return state.hexdigest()[:12]


def fill() -> Context:
    """Make the build context. Raises BuildError."""
    CONTEXT.mkdir(parents=True, exist_ok=True)
    for image in OPTIONAL:
        shutil.rmtree(CONTEXT / image.name, ignore_errors=True)
        (CONTEXT / image.name).mkdir()
        for path in sources(image):
            shutil.copyfile(path, CONTEXT / image.name / path.name)
    for image in IMAGES:
        pins = requirements(*image.extras)
        large = [pin for pin in pins if TORCH in image.pins and LARGE.match(pin)]
        for name in image.pins:
            write(CONTEXT / name, large if name == TORCH else [pin for pin in pins if pin not in large])
    shutil.copy2(find_uv(), CONTEXT / "uv.partial")
    (CONTEXT / "uv.partial").rename(CONTEXT / "uv")
    return Context(wheel=wheel())


def sources(image: Image) -> list[Path]:
    """The Containerfile, and what lies beside it."""
    return sorted(path for path in (ROOT / "images" / image.name).iterdir() if path.is_file())


def requirements(*extras: str) -> list[str]:
    """Everything that extras need, pinned as constraints.txt says, for Debian 12's Python and newer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    state = hashlib.sha256(json.dumps([extras, project["dependencies"], project["optional-dependencies"]]).encode())
    state.update((ROOT / "constraints.txt").read_bytes())
    known = BUILD / "requirements" / f"{'-'.join(extras)}-{state.hexdigest()[:12]}.txt"
    if not known.exists():
        target = ("--python-platform", "linux", "--python-version", "3.11")
        wanted = [option for extra in extras for option in ("--extra", extra)]
        pins = uv("pip", "compile", "-q", *PLAIN, *target, *wanted, "-c", "constraints.txt", "pyproject.toml")
        write(known, pins.splitlines())
    return known.read_text().splitlines()


def wheel() -> str:
    """The project's wheel in the context, built where what it is made from has changed; returns its path there."""
    sources = sources_digest()
    known = BUILD / "wheel.txt"
    if known.exists():
        of, path = known.read_text().splitlines()
        if of == sources and (CONTEXT / path).exists():
            return path
    path = build_wheel()
    write(known, [sources, path])
    return path


def sources_digest() -> str:
    """Of all files that a wheel is made from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = (ROOT / package for package in project["tool"]["scikit-build"]["wheel"]["packages"])
    found = (path for package in packages for path in package.rglob("*"))
    files = [path for path in found if path.is_file() and path.suffix not in (".pyc", ".so")]
    files += [ROOT / name for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")]
    state = hashlib.sha256()
    for path in sorted(files):
        state.update(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return state.hexdigest()


def build_wheel() -> str:
    """Build the project's wheel into the context; returns its path there."""
    made = BUILD / "wheel"
    shutil.rmtree(made, ignore_errors=True)
    command = (
        "build",
        "--quiet",
        "--wheel",
        "--build-constraints",
        "constraints.txt",
        "--out-dir",
        str(made),
        str(ROOT),
    )
    with patient(lambda: "Strata's wheel: compiling the CPU kernels"):
        uv(*command, SOURCE_DATE_EPOCH=SOURCE_DATE_EPOCH)
    [built] = made.glob("*.whl")
    place = CONTEXT / "wheels" / hashlib.sha256(built.read_bytes()).hexdigest()[:12] / built.name
    shutil.rmtree(CONTEXT / "wheels", ignore_errors=True)
    place.parent.mkdir(parents=True)
    built.rename(place)
    return str(place.relative_to(CONTEXT))


def uv_cache() -> Path:
    """Where this machine's uv keeps downloads: what is there is not downloaded again for an image."""
    cache = Path(uv("cache", "dir").strip())
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def uv(*arguments: str, **env: str) -> str:
    command = [str(find_uv()), *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"`uv {' '.join(arguments)}` failed:\n{done.stderr.strip()}")
    return done.stdout


def find_uv() -> Path:
    for candidate in (ROOT / ".venv" / "bin" / "uv", Path(shutil.which("uv") or "/nonexistent")):
        if candidate.exists():
            return candidate
    raise BuildError("uv is needed: `make images` puts it into .venv, `pip install uv` anywhere else")


def write(path: Path, lines: list[str]) -> None:
    """Write beside, then rename: an interrupted write is never read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(f"{line}\n" for line in lines))
    partial.rename(path)
