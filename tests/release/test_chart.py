from __future__ import annotations

import tarfile
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import yaml

import strata
from images.catalogue import ALL
from manifests.charts import CHART, MODEL_CHART
from release import chart
from release.state import ReleaseError
from tests.operator.chart.helm import Helm

DIGESTS = {image.values: f"sha256:{number:064}" for number, image in enumerate(ALL) if image.values}
NAMES = {"operator": "image", "gateway": "gateway.image"}
VALUES = (CHART / "values.yaml").read_text()


def test_every_image_of_the_chart_is_pinned_and_nothing_else_changes() -> None:
    before, after = yaml.safe_load(VALUES), yaml.safe_load(chart.pinned(VALUES, DIGESTS))
    for key, digest in DIGESTS.items():
        reduce(getitem, key.split("."), before)["digest"] = digest
    assert after == before


def test_a_key_within_a_key_is_pinned_alone() -> None:
    values = (
        'image:\n  digest: ""\npart:\n  # Its own.\n  image:\n    tag: ""\n    digest: ""\n  other:\n    digest: ""\n'
    )
    pinned = yaml.safe_load(chart.pinned(values, {"part.image": "sha256:1"}))
    assert pinned["part"] == {"image": {"tag": "", "digest": "sha256:1"}, "other": {"digest": ""}}
    assert pinned["image"] == {"digest": ""}


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(VALUES.replace("\nengineImage:\n", "\nengine:\n"), id="another name"),
        pytest.param(chart.pinned(VALUES, DIGESTS), id="filled already"),
    ],
)
def test_values_that_cannot_be_pinned_are_an_error(values: str) -> None:
    with pytest.raises(ReleaseError, match=r"no empty `\w+.digest` to be filled"):
        chart.pinned(values, DIGESTS)


@pytest.fixture
def packaged(helm: Helm, tmp_path: Path) -> Path:
    target = tmp_path / "strata.tgz"
    chart.package(CHART, DIGESTS, target)
    return target


def test_the_packaged_chart_asks_for_these_images_and_no_others(helm: Helm, packaged: Path) -> None:
    sets = "image.registry=localhost,agent.enabled=true,gateway.enabled=true"
    done = helm.run("template", "strata", str(packaged), "--set", sets)
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    pods = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
    found = {container["image"] for pod in pods for container in pod["containers"]}
    assert found == {f"localhost/strata-{name}@{DIGESTS[key]}" for name, key in NAMES.items()}
    assert f"--engine-image=localhost/strata-engine@{DIGESTS['engineImage']}" in done.stdout


def test_the_packaged_charts_bear_the_version(helm: Helm, packaged: Path, tmp_path: Path) -> None:
    chart.package(MODEL_CHART, {}, tmp_path / "strata-model.tgz")
    for path in (packaged, tmp_path / "strata-model.tgz"):
        with tarfile.open(path) as opened:
            file = opened.extractfile(f"{path.stem}/Chart.yaml")
            assert file is not None
            told = yaml.safe_load(file.read())
        assert told["version"] == told.get("appVersion", told["version"]) == strata.__version__


def test_another_file_of_the_chart_is_another_state(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "a.yaml").write_text("a: 1\n")
    before = chart.state(tmp_path)
    assert chart.state(tmp_path) == before
    (tmp_path / "templates" / "a.yaml").rename(tmp_path / "templates" / "b.yaml")
    assert chart.state(tmp_path) != before
