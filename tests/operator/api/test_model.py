from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import Source, StrataModel
from tests.operator.samples import CPU, FULL_SPEC, NVIDIA, model, model_object


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("builtin://smollm2-135m", {"builtin": "smollm2-135m"}),
        ("hostpath:///srv/models/a.gguf", {"host_path": "/srv/models/a.gguf"}),
        ("pvc://claim", {"claim": "claim"}),
        ("pvc://claim/in/side", {"claim": "claim", "path_in_claim": "in/side"}),
    ],
)
def test_sources(text: str, expected: dict[str, str]) -> None:
    assert Source.parse(text) == Source(text=text, **expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smollm2",
        "hf://a/b",
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
    with pytest.raises(InvalidSpecError, match="builtin://NAME, hostpath:///ABSOLUTE/PATH and pvc://CLAIM"):
        Source.parse(text)


def test_every_field_is_read() -> None:
    read = model("full", **FULL_SPEC)
    assert read.source.claim == "weights"
    assert (read.served_name, read.format, read.replicas, read.port) == ("qwen", "int8", 3, 80)
    assert read.engine.gpu_memory_utilization == "0.85"
    assert read.engine.extra_args == ("--max-waiting=64",)
    assert read.hardware.gpus == ("RTX4090D", "RTX3090Ti")
    assert read.cache_host_path == "/srv/strata"
    assert read.image == "example.com/engine:1"
    assert read.scheduling.tolerations[0].toleration_seconds == 60


def test_defaults() -> None:
    read = model("least")
    assert (read.served_name, read.format, read.replicas, read.port) == ("least", "int4", 1, 8000)
    assert read.cache_host_path == "/var/lib/strata"
    assert read.hardware.gpus == ()
    assert model(hardware=NVIDIA).hardware.gpus == ("RTX3090", "RTX4090")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"power": {"limitWatts": 1}}, "spec.power is not known to this operator"),
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
