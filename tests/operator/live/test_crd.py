"""The API server refuses what cannot be served, and says what is allowed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.api import Api
from tests.cluster.errors import ApiError, ClusterError
from tests.operator.live.harness import ROOT, manifest
from tests.operator.malformed import malformed
from tests.operator.samples import FULL_NODE_SPEC, FULL_SPECS
from tests.operator.test_crd import NODE_SPEC, SPEC

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kubeconfig")]

NVIDIA = {"accelerator": "nvidia", "cpu": 1, "memory": "1Gi"}


@pytest.mark.parametrize(
    "example", sorted((ROOT / "manifests" / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_examples_are_accepted(cluster: Cluster, example: Path) -> None:
    assert "created" in cluster.kubectl("apply", "--dry-run=server", "-f", str(example))


def bad(change: dict[str, Any], *words: str, why: str) -> Any:
    return pytest.param(change, words, id=why)


BAD = [
    bad({"speculation": {"tokens": 4}}, 'unknown field "spec.speculation"', why="unknown field"),
    bad({"hardware": {**NVIDIA, "hostMemory": {"hugePages": "2Mi"}}}, "hostMemory.hugePages", why="unknown deep field"),
    bad({"engine": {"maxmodellen": 1}}, 'unknown field "spec.engine.maxmodellen"', why="misspelt field"),
    bad({"replicas": -1}, "spec.replicas", "-1", "greater than or equal to 0", why="negative replicas"),
    bad(
        {"model": {"source": "ftp://host/model"}},
        "source is 'ftp://host/model'",
        "allowed are hf://ORG/NAME or hf://ORG/NAME:FILE, builtin://NAME, hostpath:///ABSOLUTE/PATH, pvc://CLAIM",
        why="bad scheme",
    ),
    bad({"model": {"source": "hostpath://models/x"}}, "hostpath:///ABSOLUTE/PATH", why="relative host path"),
    bad({"model": {"source": "hostpath:///a/../etc"}}, "must not hold '.' or '..'", why="way out of a path"),
    bad({"model": {}}, "spec.model.source: Required value", why="no source"),
    bad({"hardware": {**NVIDIA, "count": 9}}, "spec.hardware.count", "9", "allowed is 1", why="count 9"),
    bad({"hardware": {**NVIDIA, "count": 0}}, "allowed is 1", why="count 0"),
    bad({"hardware": {"cpu": 1, "memory": "1Gi"}}, "spec.hardware.accelerator: Required", why="no accelerator"),
    bad({"hardware": {**NVIDIA, "accelerator": "amd"}}, '"amd"', '"nvidia", "cpu"', why="unknown accelerator"),
    bad({"hardware": {**NVIDIA, "gpus": ["H100"]}}, '"H100"', '"RTX3090"', '"RTX4090D"', why="unknown card"),
    bad(
        {"hardware": {"accelerator": "cpu", "cpu": 1, "memory": "1Gi", "gpus": ["RTX3090"]}},
        "belong to accelerator nvidia",
        why="a CPU model that names cards",
    ),
    bad({"hardware": {**NVIDIA, "cpu": "1500m"}}, "spec.hardware.cpu", "integer", why="half a CPU"),
    bad({"hardware": {**NVIDIA, "memory": "3GB"}}, "memory is '3GB'", "such as 24Gi", why="no quantity"),
    bad({"hardware": {**NVIDIA, "memory": "100Mi"}}, "at least 512Mi", why="too little memory"),
    bad({"quantization": {"format": "fp8"}}, '"fp8"', '"int4", "int8", "bf16"', why="unknown format"),
    bad({"engine": {"maxModelLen": 0}}, "spec.engine.maxModelLen", "greater than or equal to 1", why="no context"),
    bad({"engine": {"blockSize": 8}}, "spec.engine.blockSize", '"16", "32"', why="block size"),
    bad(
        {"engine": {"gpuMemoryUtilization": "1.5"}, "hardware": NVIDIA},
        "gpuMemoryUtilization is '1.5'",
        "'0.1' to '1.0'",
        why="more than all of the GPU's memory",
    ),
    bad({"engine": {"gpuMemoryUtilization": "0.9"}}, "belongs to accelerator nvidia", why="GPU memory of a CPU model"),
    bad({"engine": {"extraArgs": ["--device=cuda"]}}, "--device=cuda", "sets that flag", why="a way round a field"),
    bad({"engine": {"extraArgs": ["other/model"]}}, "other/model", "one option with its value", why="no option"),
    bad({"cache": {"hostPath": "/"}}, "hostPath is '/'", "absolute path below /", why="the node's root as cache"),
    bad({"service": {"port": 70000}}, "spec.service.port", "less than or equal to 65535", why="port out of range"),
    bad({"scheduling": {"tolerations": [{"operator": "Equal"}]}}, "needs operator: Exists", why="keyless toleration"),
    bad({"model": {"source": "https://host/m.bin"}}, "https://HOST/PATH/FILE.gguf", why="no GGUF of a web server"),
    bad({"model": {"source": "hf://Qwen"}}, "hf://ORG/NAME", why="half a name on the Hub"),
    bad(
        {"model": {"source": "builtin://x", "revision": "v1"}},
        "model.revision",
        "for models on the Hub",
        why="revision",
    ),
    bad({"model": {"source": "pvc://x", "secretRef": {"name": "s"}}}, "for models on the Hub", why="token of a claim"),
    bad({"quantization": {"groupSize": 64}}, "spec.quantization.groupSize", '"32"', why="group size"),
    bad({"power": {"limitWatts": 250}}, "spec.power", "about cards", why="power of a CPU model"),
    bad({"power": {"limitWatts": 10}, "hardware": NVIDIA}, "greater than or equal to 50", why="10 W"),
    bad({"power": {}, "hardware": NVIDIA}, "spec.power", "at least 1 propert", why="no power wish"),
    bad({"hardware": {"accelerator": "cpu", "cpu": 1}}, "memory is missing", why="no memory and no pinned budget"),
    bad(
        {"hardware": {**NVIDIA, "memory": "24Gi", "hostMemory": {"pinned": "24Gi"}}},
        "memory is '24Gi'",
        "'24Gi'; memory has to hold that and 512Mi more",
        why="no memory beside the pinned budget",
    ),
    bad(
        {"hardware": {**NVIDIA, "hostMemory": {"hugepages": "2Mi"}}},
        "hugepages is '2Mi', and pinned is auto",
        "a size such as 48Gi",
        why="huge pages without a size",
    ),
    bad({"hardware": {**NVIDIA, "hostMemory": {"pinned": "some"}}}, "pinned is 'some'", "such as 48Gi", why="no size"),
    bad({"hardware": {**NVIDIA, "minPcie": {"width": 3}}}, "minPcie.width", '"8", "16"', why="three lanes"),
    bad({"rollout": {"strategy": "canary"}}, '"canary"', '"auto", "recreate", "rolling"', why="unknown strategy"),
    bad({"env": [{"name": "A"}]}, "needs one of value and valueFrom", why="a variable without value"),
    bad({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "which the operator sets", why="our variable"),
    bad({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "Duplicate value", why="twice"),
    bad(
        {"model": {"source": "hf://a/b", "secretRef": {"name": "s"}}, "env": [{"name": "HF_TOKEN", "value": "x"}]},
        "env holds HF_TOKEN, and model.secretRef sets it",
        why="two tokens",
    ),
    bad({"engine": {"prefetch": {"probability": "2"}}}, "prefetch.probability", why="a probability of 2"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_input_is_refused(cluster: Cluster, change: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ClusterError) as refusal:
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(manifest("bad", **change)))
    for word in words:
        assert word in str(refusal.value)


def test_explain_tells_every_field(cluster: Cluster) -> None:
    text = cluster.kubectl("explain", "stratamodel.spec.hardware.accelerator")
    assert "no falling back" in " ".join(text.split())


def test_short_name_and_category(cluster: Cluster) -> None:
    resources = cluster.kubectl("api-resources", "--api-group=strata.ai", "-o", "wide", "--no-headers").split()
    assert resources[:2] == ["stratamodels", "sm"]
    assert "all" in resources


def test_defaults_are_those_of_the_operator(cluster: Cluster) -> None:
    from strata_operator.api.model import StrataModel

    least = {"model": {"source": "builtin://x"}, "hardware": {"accelerator": "cpu", "cpu": 1, "memory": "1Gi"}}
    obj = {"apiVersion": "strata.ai/v1alpha1", "kind": "StrataModel", "metadata": {"name": "least"}, "spec": least}
    answer = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(obj))
    filled = json.loads(answer)
    assert filled["spec"] != least
    bare = {**copy.deepcopy(filled), "spec": least}
    assert StrataModel.parse(filled) == StrataModel.parse(bare)


def test_the_applied_crd_is_the_chart_s(cluster: Cluster) -> None:
    """Nothing of the schema is dropped by the API server: it is structural as it stands."""
    source = yaml.safe_load((ROOT / "charts" / "strata" / "crds" / "stratamodels.strata.ai.yaml").read_text())
    stored = cluster.get_json("crd", "stratamodels.strata.ai")
    assert stored["spec"]["versions"] == source["spec"]["versions"]
    conditions = {one["type"]: one["status"] for one in stored["status"]["conditions"]}
    assert "NonStructuralSchema" not in conditions
    assert conditions["NamesAccepted"] == "True"


@pytest.mark.parametrize(
    ("kind", "place", "schema", "full"),
    [
        pytest.param("StrataModel", "namespaces/default/stratamodels", SPEC, FULL_SPECS[0], id="StrataModel"),
        pytest.param("StrataModel", "namespaces/default/stratamodels", SPEC, FULL_SPECS[1], id="of an Ingress"),
        pytest.param("StrataNode", "stratanodes", NODE_SPEC, FULL_NODE_SPEC, id="StrataNode"),
    ],
)
def test_each_malformed_spec_is_refused(
    cluster: Cluster, kind: str, place: str, schema: dict[str, Any], full: dict[str, Any]
) -> None:
    path = f"/apis/strata.ai/v1alpha1/{place}?dryRun=All&fieldValidation=Strict"
    answers: dict[str, int] = {}
    with Api(cluster.kubeconfig) as api:
        for what, spec in [("as it should be", full), *malformed(schema, full)]:
            obj = {"apiVersion": "strata.ai/v1alpha1", "kind": kind, "metadata": {"name": "malformed"}, "spec": spec}
            try:
                api.create(path, obj)
                answers[what] = 201
            except ApiError as refusal:
                answers[what] = refusal.status
    assert {what: status for what, status in answers.items() if status not in (400, 422)} == {"as it should be": 201}
