"""All files of a release, in ``dist/strata-VERSION``."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import context
from images.build import build
from images.buildah import ROOT, say
from images.catalogue import ALL
from manifests.charts import CHART, MODEL_CHART
from release import archive, chart, inventory, sbom, state, wheel
from release.made import once

SUMS, NOTES = "SHA256SUMS", "RELEASE-NOTES.md"


@dataclass(frozen=True, slots=True)
class Release:
    """Where a release's files are. A snapshot is of whatever the checkout holds, and never published."""

    version: str
    snapshot: bool
    place: Path = ROOT / "dist"

    @property
    def name(self) -> str:
        return "strata-snapshot" if self.snapshot else f"strata-{self.version}"

    @property
    def folder(self) -> Path:
        return self.place / self.name

    def archive(self, image: str) -> Path:
        return self.folder / f"{image}-{self.version}.oci.tar"

    def sbom(self, image: str) -> Path:
        return self.folder / f"{image}-{self.version}.cdx.json"

    def chart(self, chart: Path) -> Path:
        return self.folder / f"{chart.name}-{self.version}.tgz"


def make(release: Release) -> None:
    """Make or complete the files; what is unchanged stays. Raises ReleaseError, BuildError."""
    if not release.snapshot:
        state.check(release.version)
    notes = state.notes((ROOT / "CHANGELOG.md").read_text(), None if release.snapshot else release.version)
    release.folder.mkdir(parents=True, exist_ok=True)
    made = [release.folder / NOTES]
    made[0].write_text(notes)
    with step(1, "images"):
        local = build(ALL)
    with step(2, "wheel"):
        made.append(tagged_wheel(release))
    with step(3, "images as OCI archives"):
        made += [archived(release, name, image) for name, image in local.items()]
    digests = {image.name: archive.digest(release.archive(image.name)) for image in ALL}
    with step(4, "bills of materials"):
        made += [listed(release, name, image, digests[name]) for name, image in local.items()]
    with step(5, "charts"):
        made += [packaged(release, CHART, {image.values: digests[image.name] for image in ALL if image.values})]
        made += [packaged(release, MODEL_CHART, {})]
    with step(6, "checksums"):
        for stale in set(release.folder.iterdir()) - set(made):
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
        write_sums(release.folder)


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    say(f"[{number}/6] {title}")
    yield


def tagged_wheel(release: Release) -> Path:
    built = context.CONTEXT / context.wheel()
    inputs = f"{wheel.PLATFORM} {hashlib.sha256(built.read_bytes()).hexdigest()}"
    return once(release.folder / wheel.file_name(built), inputs, lambda target: wheel.tag(built, target))


def archived(release: Release, name: str, image: str) -> Path:
    reference = f"{archive.HOST}/{name}:{release.version}"
    inputs = f"{reference} {archive.image_id(image)}"
    return once(release.archive(name), inputs, lambda target: archive.write(image, reference, target))


def listed(release: Release, name: str, image: str, digest: str) -> Path:
    def write(target: Path) -> None:
        text = sbom.document(name, release.version, digest, sbom.packages(image), state.commit_time())
        target.write_text(text)

    programs = "".join(Path(str(module.__file__)).read_text() for module in (inventory, sbom))
    inputs = f"{release.version} {digest} {hashlib.sha256(programs.encode()).hexdigest()}"
    return once(release.sbom(name), inputs, write)


def packaged(release: Release, source: Path, digests: dict[str, str]) -> Path:
    inputs = f"{chart.state(source)} {digests}"
    return once(release.chart(source), inputs, lambda target: chart.package(source, digests, target))


def write_sums(folder: Path) -> None:
    """SHA256SUMS of all files below ``folder``, as ``sha256sum --check`` reads it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    (folder / SUMS).write_text("".join(sum_line(path, folder) for path in files))


def sum_line(path: Path, folder: Path) -> str:
    """A file's line for ``sha256sum --check`` in ``folder``."""
    with path.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder)}\n"
