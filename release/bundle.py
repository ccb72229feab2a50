"""The air-gap bundle: one tar file with all that a cluster without internet needs, and a script that installs it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.buildah import BUILD, ROOT, say
from images.catalogue import ALL
from manifests.charts import CHART, MODEL_CHART
from release import archive
from release.release import NOTES, Release, sum_line, write_sums
from release.state import ReleaseError

_SCRIPT = Path(__file__).with_name("install.sh")
_EXAMPLE = ROOT / "manifests" / "examples" / "air-gapped.yaml"
_STORES = BUILD.parent / "release" / "stores"


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a bundle: a store in bit format ``dtype``, in the folder models/NAME."""

    name: str
    source: str
    dtype: str


def parse_models(given: Sequence[str], dtype: str) -> list[Model]:
    """``NAME=SOURCE`` each. Raises ReleaseError."""
    models: list[Model] = []
    for text in given:
        name, _, source = text.partition("=")
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) or not source:
            raise ReleaseError(
                f"{text!r} is no model of a bundle: give NAME=SOURCE, NAME of lower-case letters, digits and dashes, "
                "such as smollm2=builtin://smollm2-135m or qwen3-8b=Qwen/Qwen3-8B"
            )
        if name in (model.name for model in models):
            raise ReleaseError(f"two models of the bundle are called {name}; give each a name of its own")
        models.append(Model(name, source, dtype))
    return models


def make(release: Release, stores: Mapping[str, Path]) -> Path:
    """Write the bundle of a release whose files are there, and its sum beside it; returns its path.

    ``stores``: of models, by their names.
    """
    name = f"{release.name}-bundle"
    target = release.folder.with_name(f"{name}.tar")
    partial = target.with_name(f".{target.name}")
    folder = release.folder.with_name(name)
    stage(release, stores, folder)
    try:
        # Not compressed: images and weights are already.
        with tarfile.open(partial, "w") as opened:
            opened.add(folder, arcname=name, filter=plain)
        partial.rename(target)
        target.with_name(f"{target.name}.sha256").write_text(sum_line(target, target.parent))
    finally:
        partial.unlink(missing_ok=True)
        shutil.rmtree(folder)
    say(f"{target.name}: {target.stat().st_size / 1e6:,.1f} MB")
    return target


def stage(release: Release, stores: Mapping[str, Path], folder: Path) -> None:
    """Lay the bundle out in ``folder``, with links to what is large."""
    say("bundle: images, charts, definitions, bills of materials" + "".join(f", {name}" for name in stores))
    shutil.rmtree(folder, ignore_errors=True)
    for kind, files in {
        ".": [_SCRIPT, release.folder / NOTES, ROOT / "LICENSE"],
        "images": [release.archive(image.name) for image in ALL],
        "sbom": [release.sbom(image.name) for image in ALL],
        "charts": [release.chart(CHART), release.chart(MODEL_CHART)],
        "crds": sorted((CHART / "crds").glob("*.yaml")),
        "examples": [_EXAMPLE],
    }.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for file in files:
            link(file, folder / kind / file.name)
    with (folder / "images.txt").open("w") as rows:
        for image in ALL:
            file = release.archive(image.name)
            rows.write(f"images/{file.name} {image.name} {release.version} {archive.digest(file)}\n")
    for name, place in stores.items():
        shutil.copytree(place, folder / "models" / name, copy_function=link)
    write_sums(folder)


def link(source: str | Path, target: str | Path) -> None:
    """A hard link, or a copy where the two are on different disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's, and readable."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def store(model: Model) -> Path:
    """The model's store; converted unless it is one, or an earlier bundle had it. Raises ReleaseError."""
    given = Path(model.source).expanduser()
    if is_store(given):
        return given
    key = hashlib.sha256(f"{model.source} {model.dtype}".encode()).hexdigest()[:12]
    place = _STORES / f"{model.name}-{key}"
    if is_store(place):
        say(f"{model.name}: unchanged")
        return place
    say(f"{model.name}: converting {model.source} to {model.dtype}")
    # It goes on where it was when it is interrupted, and its folder appears only whole.
    program = str(Path(sys.executable).with_name("strata"))
    command = [program, "convert", model.source, "--output-dir", str(place), "--dtype", model.dtype]
    if subprocess.run(command, check=False).returncode != 0:
        raise ReleaseError(f"`strata convert {model.source}` failed; its reason is above")
    return place


def is_store(place: Path) -> bool:
    """Whether it is a directory that ``strata convert`` made."""
    config = place / "config.json"
    return config.is_file() and "strata" in json.loads(config.read_text())
