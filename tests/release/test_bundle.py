"""The bundle as it is unpacked, and its script with programs that only write down how they were called."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request

import pytest

from images.catalogue import ALL
from manifests.charts import CHART, MODEL_CHART
from release import archive, bundle
from release.bundle import Model
from release.release import NOTES, SUMS, Release
from release.state import ReleaseError
from tests.cluster import Cluster
from tests.cluster.images import of_binary
from tests.cluster.shell import direct

VERSION = "1.2.3"
# Notes how it was called; `ctr images list` says what was tagged before.
RECORDER = """\
#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$*" in *" list "*) sed -n 's/.* tag --force [^ ]* //p' "$CALLS" ;; esac
"""


@pytest.fixture
def made(tmp_path: Path) -> Release:
    """A release with images of one file each."""
    made = Release(VERSION, snapshot=False, place=tmp_path / "dist")
    made.folder.mkdir(parents=True)
    for image in ALL:
        (tmp_path / image.name).write_text(image.name)
        content = of_binary(tmp_path / image.name).archive(f"{archive.HOST}/{image.name}:{VERSION}")
        made.archive(image.name).write_bytes(content)
        made.sbom(image.name).write_text("{}")
    for chart in (CHART, MODEL_CHART):
        made.chart(chart).write_text(chart.name)
    (made.folder / NOTES).write_text("- A change.\n")
    return made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "shared").mkdir(parents=True)
    (folder / "config.json").write_text('{"strata": {}}')
    (folder / "shared" / "00001-of-00001.safetensors").write_text("weights")
    return folder


@dataclass(frozen=True, slots=True)
class Unpacked:
    folder: Path
    calls: Path
    programs: Path

    def run(self, *arguments: str, check: bool = True) -> str:
        """What install.sh said on either output."""
        # None of this machine's k3s, ctr, helm or skopeo.
        env = {"PATH": f"{self.programs}:{self.folder.parent / 'tools'}", "CALLS": str(self.calls)}
        command = ["sh", str(self.folder / "install.sh"), *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd="/")
        assert (done.returncode == 0) == check, done.stdout + done.stderr
        return done.stdout + done.stderr

    def called(self) -> list[str]:
        return self.calls.read_text().replace(str(self.folder), "BUNDLE").splitlines() if self.calls.exists() else []

    def install_program(self, name: str) -> None:
        (self.programs / name).write_text(RECORDER)
        (self.programs / name).chmod(0o755)


@pytest.fixture
def unpacked(made: Release, store: Path, tmp_path: Path) -> Unpacked:
    """The bundle of that release and a model, unpacked, where the usual small programs are and no others."""
    tar = bundle.make(made, {"tiny": bundle.store(Model("tiny", str(store), "int4"))})
    assert {path.name for path in tar.parent.iterdir()} == {f"strata-{VERSION}", tar.name, f"{tar.name}.sha256"}
    subprocess.run(["sha256sum", "--check", "--quiet", f"{tar.name}.sha256"], cwd=tar.parent, check=True)
    with tarfile.open(tar) as opened:
        opened.extractall(tmp_path / "site", filter="data")
    tools, programs = tmp_path / "site" / "tools", tmp_path / "programs"
    for folder in (tools, programs):
        folder.mkdir()
    for tool in ("sh", "sha256sum", "grep", "sed", "wc", "tr", "cat", "dirname", "basename", "mkdir", "rm", "cp", "mv"):
        (tools / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool}"))
    return Unpacked(tmp_path / "site" / f"strata-{VERSION}-bundle", tmp_path / "calls", programs)


def digest(made: Release, name: str) -> str:
    return archive.digest(made.archive(name))


def test_all_of_the_release_is_in_it_and_whole(unpacked: Unpacked) -> None:
    assert "file(s) of the bundle are as they were made" in unpacked.run("check")
    found = {str(path.relative_to(unpacked.folder)) for path in unpacked.folder.rglob("*") if path.is_file()}
    summed = {line.split("  ", 1)[1] for line in (unpacked.folder / SUMS).read_text().splitlines()}
    assert found == summed | {SUMS}
    for image in ALL:
        assert {f"images/{image.name}-{VERSION}.oci.tar", f"sbom/{image.name}-{VERSION}.cdx.json"} <= found
    assert {"crds/stratamodels.strata.ai.yaml", "examples/air-gapped.yaml", "models/tiny/config.json"} <= found
    assert {f"charts/strata-{VERSION}.tgz", f"charts/strata-model-{VERSION}.tgz", "install.sh"} <= found


def test_help_shows_every_command_and_option(unpacked: Unpacked) -> None:
    told = unpacked.run("--help")
    for word in ("check", "load", "models", "install", "--registry", "--plain-http", "--ctr", "--to", "--namespace"):
        assert f"\n  {word} " in told
    assert unpacked.run(check=False) == told


def test_images_are_loaded_once_under_the_names_that_the_chart_asks_for(unpacked: Unpacked, made: Release) -> None:
    unpacked.install_program("ctr")
    unpacked.run("load")
    unpacked.run("load")
    imports, names = [], []
    for image in ALL:
        name = f"localhost/{image.name}"
        imports.append(f"ctr --namespace k8s.io images import BUNDLE/images/{image.name}-{VERSION}.oci.tar")
        names.append(f"{name}@{digest(made, image.name)}")
        assert f"ctr --namespace k8s.io images tag --force {name}:{VERSION} {names[-1]}" in unpacked.called()
    assert [call for call in unpacked.called() if " import " in call] == imports
    pinned = [call.split()[5] for call in unpacked.called() if call.endswith("io.cri-containerd.pinned=pinned")]
    assert pinned == [*names, *names]


def test_a_client_of_containerd_with_options_is_taken_as_it_is_named(unpacked: Unpacked) -> None:
    unpacked.install_program("ctr")
    unpacked.install_program("k3s")
    unpacked.run("load")
    assert {call.split()[0] for call in unpacked.called()} == {"k3s"}
    unpacked.run("load", "--ctr", "ctr --address /run/k3s/containerd/containerd.sock")
    assert unpacked.called()[-1].startswith("ctr --address /run/k3s/containerd/containerd.sock --namespace k8s.io ")


def test_images_go_to_a_registry_with_their_digests(unpacked: Unpacked) -> None:
    unpacked.install_program("skopeo")
    unpacked.run("load", "--registry", "host:5000/team/", "--plain-http")
    copy = "skopeo copy --quiet --preserve-digests --dest-tls-verify=false"
    assert unpacked.called() == [
        f"{copy} oci-archive:BUNDLE/images/{name}-{VERSION}.oci.tar docker://host:5000/team/{name}:{VERSION}"
        for name in (image.name for image in ALL)
    ]


def test_the_chart_is_installed_from_where_the_images_are(unpacked: Unpacked) -> None:
    unpacked.install_program("helm")
    unpacked.run("install")
    unpacked.run("install", "--registry", "host:5000/team", "--namespace", "llm", "--", "--set", "agent.enabled=true")
    first, second = unpacked.called()
    assert first.startswith(f"helm upgrade strata BUNDLE/charts/strata-{VERSION}.tgz --install ")
    assert " --namespace strata-system " in first
    assert "--set image.registry=localhost --wait" in first
    assert " --namespace llm " in second
    assert "--set image.registry=host:5000/team " in second
    assert second.endswith("--set agent.enabled=true")


def test_models_replace_those_of_the_last_bundle(unpacked: Unpacked, tmp_path: Path) -> None:
    place = tmp_path / "models" / "tiny"
    place.mkdir(parents=True)
    (place / "stale").touch()
    assert f"tiny: source hostpath://{place}" in unpacked.run("models", "--to", str(place.parent))
    assert [path.name for path in sorted(place.parent.iterdir())] == ["tiny"]
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "shared"]


def test_a_bundle_without_models_says_how_to_have_some(unpacked: Unpacked) -> None:
    shutil.rmtree(unpacked.folder / "models")
    assert "this bundle has no models: make one with MODELS=NAME=SOURCE" in unpacked.run("models", check=False)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        pytest.param("check", "LICENSE", id="check looks at all"),
        pytest.param("load", f"images/strata-engine-{VERSION}.oci.tar", id="images"),
        pytest.param("install", f"charts/strata-{VERSION}.tgz", id="charts"),
        pytest.param("models", "models/tiny/shared/00001-of-00001.safetensors", id="models"),
    ],
)
@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_nothing_is_done_with_files_that_are_not_as_they_were_made(
    unpacked: Unpacked, command: str, file: str, harm: str
) -> None:
    for program in ("ctr", "helm"):
        unpacked.install_program(program)
    harmed = unpacked.folder / file
    harmed.write_text("other") if harm == "changed" else harmed.unlink()
    told = unpacked.run(command, check=False)
    assert f"{file}: FAILED" in told
    assert "copy and unpack it again" in told
    assert unpacked.called() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["load"], "neither k3s nor ctr is installed here", id="no containerd"),
        pytest.param(["load", "--registry", "host"], "skopeo is not installed here", id="no skopeo"),
        pytest.param(["install"], "helm is not installed here", id="no helm"),
        pytest.param(["load", "--registry", "https://host"], "without a scheme", id="a URL"),
        pytest.param(["load", "--registry"], "--registry needs a value", id="no value"),
        pytest.param(["models", "--to", "here"], "give an absolute path", id="relative path"),
        pytest.param(["load", "--regsitry", "host"], "unknown option --regsitry", id="unknown option"),
        pytest.param(["deploy"], "unknown command deploy; there are check, load,", id="unknown command"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_told(unpacked: Unpacked, arguments: list[str], words: str) -> None:
    assert words in unpacked.run(*arguments, check=False)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(["builtin://smollm2-135m"], id="no name"),
        pytest.param(["tiny="], id="no source"),
        pytest.param(["Tiny=x"], id="a name that no folder of a node should have"),
        pytest.param(["a=x", "a=y"], id="twice"),
    ],
)
def test_models_that_cannot_be_meant_are_refused(given: list[str]) -> None:
    with pytest.raises(ReleaseError, match=r"of the bundle|of a bundle"):
        bundle.parse_models(given, "int4")


def test_a_source_may_hold_an_equals_sign() -> None:
    assert bundle.parse_models(["a=https://host/x.gguf#sha256=00"], "int8") == [
        Model("a", "https://host/x.gguf#sha256=00", "int8")
    ]


@pytest.mark.cluster
def test_a_real_registry_has_the_digests_that_the_chart_asks_for(
    unpacked: Unpacked, made: Release, cluster: Cluster
) -> None:
    (unpacked.programs / "skopeo").symlink_to(shutil.which("skopeo") or pytest.fail("skopeo is not installed"))
    place = f"{cluster.registry}/bundle-test"
    unpacked.run("load", "--registry", place, "--plain-http")
    for image in ALL:
        url = f"http://{cluster.registry}/v2/bundle-test/{image.name}/manifests/{VERSION}"
        request = Request(url, method="HEAD", headers={"Accept": "application/vnd.oci.image.manifest.v1+json"})
        with direct.open(request, timeout=30) as answer:
            assert answer.headers["Docker-Content-Digest"] == digest(made, image.name)
