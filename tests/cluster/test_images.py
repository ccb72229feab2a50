from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster.errors import CommandError
from tests.cluster.images import digest, of_binary


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "hello"
    path.write_bytes(b"\x7fELF not really")
    return path


def test_the_same_program_makes_the_same_image(program: Path) -> None:
    first = of_binary(program)
    program.touch()
    assert of_binary(program).digest == first.digest
    program.write_bytes(b"another")
    assert of_binary(program).digest != first.digest


def test_the_manifest_describes_what_is_in_the_image(program: Path) -> None:
    image = of_binary(program)
    manifest, config = json.loads(image.manifest), json.loads(image.config)
    assert manifest["config"]["digest"] == digest(image.config)
    assert [layer["digest"] for layer in manifest["layers"]] == [digest(image.layer)]
    assert config["rootfs"]["diff_ids"] == [digest(gzip.decompress(image.layer))]
    assert config["config"]["Entrypoint"] == ["/hello"]
    with tarfile.open(fileobj=io.BytesIO(image.layer)) as layer:
        assert [(entry.name, entry.mode) for entry in layer] == [("hello", 0o755)]


def test_the_archive_is_an_oci_layout_under_the_given_name(program: Path) -> None:
    image = of_binary(program)
    with tarfile.open(fileobj=io.BytesIO(image.archive("localhost/hello:1"))) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "localhost/hello:1"}
    assert files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")] == image.manifest
    assert all(name.endswith(digest(blob).removeprefix("sha256:")) for name, blob in files.items() if "blobs" in name)


def test_a_registry_that_does_not_answer_is_named(program: Path) -> None:
    with pytest.raises(CommandError, match=r"http://127\.0\.0\.1:1/v2/hello/"):
        of_binary(program).push("127.0.0.1:1", "hello", "1")
