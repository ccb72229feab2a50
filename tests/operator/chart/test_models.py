"""The chart strata-model makes StrataModels that say what its values say."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.charts import MODEL_CHART, ROOT
from strata_operator.api.model import StrataModel
from tests.operator.chart.helm import Helm, by_name
from tests.operator.samples import FULL_SPECS

EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
CPU = {"model": {"source": "builtin://x"}, "hardware": {"accelerator": "cpu", "cpu": 1, "memory": "3Gi"}}


def models(helm: Helm, values: dict[str, Any]) -> dict[str, Any]:
    """Specs by name."""
    return {name: obj["spec"] for (_, name), obj in by_name(helm.text(values, MODEL_CHART)).items()}


def refusal(helm: Helm, values: dict[str, Any]) -> str:
    done = helm.run("template", "strata", str(MODEL_CHART), values=values)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_lint(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(MODEL_CHART))
    assert done.returncode == 0, done.stdout


def test_without_models_there_is_nothing(helm: Helm) -> None:
    assert models(helm, {}) == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_a_spec_arrives_as_it_is(helm: Helm, example: Path) -> None:
    specs = {obj["metadata"]["name"]: obj["spec"] for obj in yaml.safe_load_all(example.read_text())}
    assert models(helm, {"models": specs}) == specs


def test_every_field_is_known_to_the_schema(helm: Helm) -> None:
    specs = {f"m{number}": spec for number, spec in enumerate(FULL_SPECS)}
    assert models(helm, {"models": specs}) == specs


@pytest.mark.parametrize("folder", [".", "autoscaling", "routes"])
def test_a_folder_of_examples_can_be_applied_whole(folder: str) -> None:
    examples = (ROOT / "manifests" / "examples" / folder).glob("*.yaml")
    made = [obj for path in examples for obj in yaml.safe_load_all(path.read_text())]
    assert made
    assert [obj for obj in made if not {"apiVersion", "kind", "metadata"} <= obj.keys()] == []


@pytest.mark.parametrize("example", sorted((MODEL_CHART / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_its_examples_are_models_that_the_operator_reads(helm: Helm, example: Path) -> None:
    made = models(helm, yaml.safe_load(example.read_text()))
    assert made
    for name, spec in made.items():
        metadata = {"name": name, "namespace": "ns", "uid": "u", "generation": 1}
        StrataModel.parse({"metadata": metadata, "spec": spec})


@pytest.mark.parametrize(
    ("default", "own", "made"),
    [
        pytest.param({"suspend": True}, {"suspend": False}, {"suspend": False}, id="false wins"),
        pytest.param({"replicas": 2}, {"replicas": 0}, {"replicas": 0}, id="nought wins"),
        pytest.param({"power": {"limitWatts": 280}}, {"power": None}, {}, id="null takes out"),
        pytest.param(
            {}, {"engine": {"prefetch": None, "maxNumSeqs": 1}}, {"engine": {"maxNumSeqs": 1}}, id="what is not there"
        ),
        pytest.param(
            {"engine": {"maxNumSeqs": 4, "maxNumBatchedTokens": 1048576}},
            {"engine": {"maxNumSeqs": 2}},
            {"engine": {"maxNumSeqs": 2, "maxNumBatchedTokens": 1048576}},
            id="tables are merged, and large numbers stay numbers",
        ),
        pytest.param(
            {"engine": {"extraArgs": ["--a=1", "--b=2"]}},
            {"engine": {"extraArgs": ["--c=3"]}},
            {"engine": {"extraArgs": ["--c=3"]}},
            id="lists are replaced",
        ),
    ],
)
def test_defaults_are_what_a_model_does_not_say(
    helm: Helm, default: dict[str, Any], own: dict[str, Any], made: dict[str, Any]
) -> None:
    values = {"defaults": {**CPU, **default}, "models": {"a": own or {"replicas": 1}}}
    assert models(helm, values) == {"a": {**copy.deepcopy(CPU), **made}}


def test_a_model_that_is_null_is_none(helm: Helm) -> None:
    assert list(models(helm, {"models": {"a": CPU, "b": None}})) == ["a"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"modle": {}}, "additional properties 'modle' not allowed"),
        ({"engine": {"maxmodellen": 1}}, "additional properties 'maxmodellen' not allowed"),
        ({"engine": {"blockSize": 8}}, "value must be one of"),
        ({"replicas": "2"}, "got string, want"),
        ({"power": {"limitWatts": 20}}, "minimum: got 20, want 50"),
    ],
    ids=str,
)
def test_what_no_model_may_have_is_refused(helm: Helm, spec: dict[str, Any], words: str) -> None:
    assert words in refusal(helm, {"models": {"a": spec}})
    assert words in refusal(helm, {"defaults": spec})


def test_labels_and_annotations_are_the_object_s(helm: Helm) -> None:
    values = {"models": {"a": CPU}, "commonLabels": {"team": "x"}, "commonAnnotations": {"b": "c"}, "keep": True}
    ((_, obj),) = by_name(helm.text(values, MODEL_CHART)).items()
    assert obj["metadata"]["labels"]["team"] == "x"
    assert obj["metadata"]["annotations"] == {"b": "c", "helm.sh/resource-policy": "keep"}
    assert obj["metadata"]["namespace"] == "ns"
    assert "app.kubernetes.io/name" in refusal(helm, {"commonLabels": {"app.kubernetes.io/name": "x"}})
