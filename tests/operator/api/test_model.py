from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.container import SecretKey
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.hardware import Pcie
from strata_operator.api.model import StrataModel
from strata_operator.api.power import Power
from strata_operator.api.source import Source
from tests.operator.samples import CPU, FULL_SPEC, NVIDIA, model, model_object


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("builtin://smollm2-135m", {"builtin": "smollm2-135m"}),
        ("hostpath:///srv/models/a.gguf", {"host_path": "/srv/models/a.gguf"}),
        ("pvc://claim", {"claim": "claim"}),
        ("pvc://claim/in/side", {"claim": "claim", "path_in_claim": "in/side"}),
        ("hf://Qwen/Qwen3-8B", {"hub": "Qwen/Qwen3-8B"}),
        ("hf://org/name:Q4_K_M", {"hub": "org/name:Q4_K_M"}),
        ("https://host/dir/m.gguf", {"url": "https://host/dir/m.gguf"}),
        (f"http://host:80/m.gguf?a=b#sha256={'0' * 64}", {"url": f"http://host:80/m.gguf?a=b#sha256={'0' * 64}"}),
    ],
)
def test_sources(text: str, expected: dict[str, str]) -> None:
    assert Source.parse(text) == Source(text=text, **expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smollm2",
        "hf://a",
        "hf://a/b/c",
        "hf://a/b:",
        "hf://a/b@main",
        "ftp://host/model",
        "https://host/model.bin",
        "https://host/../m.gguf",
        "https://host/m.gguf#md5=0",
        "hostpath://relative/path",
        "hostpath:///a/../etc",
        "hostpath:///a/.",
        "hostpath:///",
        "hostpath:///a b",
        "pvc:///path",
        "pvc://claim/../x",
        "builtin://a/b",
        "builtin://a\n",
    ],
)
def test_other_sources_are_refused(text: str) -> None:
    with pytest.raises(
        InvalidSpecError, match="hf://ORG/NAME:FILE, builtin://NAME, hostpath:///ABSOLUTE/PATH, pvc://CLAIM"
    ):
        Source.parse(text)


def test_every_field_is_read() -> None:
    read = model("full", **FULL_SPEC)
    assert (read.source.hub, read.revision, read.token) == ("Qwen/Qwen3-30B-A3B", "v1", SecretKey("hub", "hf"))
    assert read.hardware.min_pcie == Pcie(3, 16)
    assert (read.hardware.memory_bytes, read.hardware.hugepages_bytes) == (48 << 30, 32 << 30)
    assert read.power == Power(280, 2100, 9500, 83, 100)
    assert (read.strategy, read.endpoint.api_keys) == ("rolling", SecretKey("keys", "team"))
    assert [one["name"] for one in read.env] == ["TZ", "PROXY", "REGION"]
    assert read.pod_template.spec == {"dnsPolicy": "Default"}
    assert (read.endpoint.served_name, read.format, read.replicas, read.endpoint.port) == ("qwen", "int8", 3, 80)
    assert read.engine.gpu_memory_utilization == "0.85"
    assert read.engine.extra_args == ("--allowed-origins=https://chat.example",)
    assert read.hardware.gpus == ("RTX4090D", "RTX3090Ti")
    assert read.cache_host_path == "/srv/strata"
    assert read.image == "example.com/engine:1"
    assert read.route is not None
    assert (read.route.path, read.route.parents[0].section_name, read.route.timeout_seconds) == ("/qwen", "https", 600)
    assert read.scheduling.tolerations[0].toleration_seconds == 60


def test_a_suspended_model_wants_no_pod_and_keeps_its_replicas() -> None:
    read = model(suspend=True, replicas=3)
    assert (read.wanted_replicas, read.replicas) == (0, 3)


@pytest.mark.parametrize(
    ("hardware", "memory", "hugepages"),
    [
        pytest.param({"memory": "24Gi"}, "24Gi", 0, id="as given"),
        pytest.param({"memory": "24Gi", "hostMemory": {"pinned": "auto"}}, "24Gi", 0, id="auto is what it leaves"),
        pytest.param({"hostMemory": {"pinned": "48Gi"}}, "52Gi", 0, id="budget and working set"),
        pytest.param({"hostMemory": {"pinned": "1G", "hugepages": "2Mi"}}, "4Gi", 477 * (2 << 20), id="whole pages"),
        pytest.param(
            {"memory": "1Gi", "hostMemory": {"pinned": "48Gi", "hugepages": "1Gi"}}, "1Gi", 48 << 30, id="1Gi"
        ),
    ],
)
def test_one_budget_of_memory(hardware: dict[str, Any], memory: str, hugepages: int) -> None:
    read = model(hardware={"accelerator": "nvidia", "cpu": 4, **hardware}).hardware
    assert (read.memory, read.hugepages_bytes) == (memory, hugepages)


def test_what_acts_in_part_only_is_told() -> None:
    assert model().notes == ()
    pinned = {"accelerator": "nvidia", "cpu": 4, "hostMemory": {"pinned": "48Gi", "hugepages": "2Mi"}}
    assert model(hardware=pinned).notes == ()
    (note,) = model(hardware={**pinned, "accelerator": "cpu"}).notes
    assert "a model on a CPU does not use them" in note


def test_defaults() -> None:
    read = model("least")
    assert (read.endpoint.served_name, read.format, read.replicas, read.endpoint.port) == ("least", "int4", 1, 8000)
    assert read.cache_host_path == "/var/lib/strata"
    assert read.hardware.gpus == ()
    assert model(hardware=NVIDIA).hardware.gpus == ("RTX3090", "RTX4090")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"speculation": {"tokens": 1}}, "spec.speculation is not known to this operator"),
        ({"power": {"limitWatts": 1}, "hardware": NVIDIA}, "limitWatts is 1; allowed are 50 to 1000"),
        ({"power": {"limitWatts": 250}}, "spec.power is about cards"),
        ({"cache": {"keepWarm": True}}, "spec.cache.keepWarm belongs to hardware.accelerator nvidia"),
        ({"suspend": "yes"}, "spec.suspend is 'yes'; it must be true or false"),
        ({"quantization": {"groupSize": 64}}, "groupSize is 64; allowed are 32"),
        ({"rollout": {"strategy": "canary"}}, "'canary'; allowed are auto, recreate, rolling"),
        ({"model": {"source": "builtin://x", "revision": "v1"}}, "spec.model.revision is for models on the Hub"),
        ({"model": {"source": "builtin://x", "secretRef": {"name": "s"}}}, "spec.model.secretRef is for models on"),
        ({"model": {"source": "hf://a/b", "secretRef": {}}}, "spec.model.secretRef.name is missing"),
        (
            {"model": {"source": "hf://a/b", "secretRef": {"name": "s"}}, "env": [{"name": "HF_TOKEN", "value": "x"}]},
            "spec.env holds HF_TOKEN, and spec.model.secretRef sets it",
        ),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "which the operator sets"),
        ({"env": [{"name": "A"}]}, "A needs one of value"),
        ({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "holds A twice; remove one"),
        ({"env": [{"name": "1A", "value": "x"}]}, "holds '1A'; a name is letters"),
        ({"env": ["A=1"]}, r"spec.env\[0\] is 'A=1'; it must be a table"),
        ({"podTemplate": {"metadata": {"labels": {"strata.ai/model": "x"}}}}, "are the operator's own"),
        ({"hardware": {**CPU, "minVramGiB": 24}}, "minVramGiB and minPcie belong to accelerator nvidia"),
        ({"hardware": {**NVIDIA, "minPcie": {"width": 3}}}, "width is 3; allowed are 1, 2, 4, 8, 16"),
        ({"hardware": {"accelerator": "cpu", "cpu": 1}}, "spec.hardware.memory is missing; give it, or a size"),
        ({"hardware": {**CPU, "memory": "lots"}}, "spec.hardware.memory is 'lots'; a quantity such as 24Gi"),
        ({"hardware": {**NVIDIA, "hostMemory": {"pinned": "24Gi"}}}, "memory is '24Gi'; at least 25088Mi is needed"),
        ({"hardware": {**NVIDIA, "hostMemory": {"hugepages": "2Mi"}}}, "give pinned a size"),
        ({"engine": {"speculation": True}}, "spec.engine.speculation is not known"),
        ({"scheduling": {"tolerations": [{"kei": "x"}]}}, r"tolerations\[0\].kei is not known"),
        ({"replicas": -1}, "spec.replicas is -1; it must be at least 0"),
        ({"replicas": "2"}, "spec.replicas is '2'; it must be a whole number"),
        ({"replicas": True}, "spec.replicas is True; it must be a whole number"),
        ({"model": {}}, "spec.model.source is missing"),
        ({"model": None}, "spec.model.source is missing"),
        ({"hardware": {**CPU, "accelerator": "amd"}}, "'amd'; allowed are nvidia, cpu"),
        ({"hardware": {"cpu": 1, "memory": "1Gi"}}, "accelerator is None; allowed are nvidia, cpu"),
        ({"hardware": {**NVIDIA, "count": 9}}, "count is 9; one replica runs on 1 GPU"),
        ({"hardware": {**NVIDIA, "gpus": ["H100"]}}, "'H100'; allowed are RTX3090"),
        ({"hardware": {**CPU, "gpus": ["RTX3090"]}}, "belong to accelerator nvidia"),
        ({"hardware": {**CPU, "cpu": 0}}, "spec.hardware.cpu is 0"),
        ({"engine": {"blockSize": 8}}, "blockSize is 8; allowed are 16 and 32"),
        ({"engine": {"extraArgs": [1]}}, "extraArgs holds 1"),
        ({"quantization": {"format": "fp8"}}, "'fp8'; allowed are int4, int8, bf16"),
        ({"cache": {"hostPath": "/"}}, "hostPath is '/'"),
        ({"cache": {"hostPath": "/a/../etc"}}, "without '.' or '..'"),
    ],
)
def test_what_a_newer_or_older_crd_lets_through_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        StrataModel.parse(model_object(**change))
