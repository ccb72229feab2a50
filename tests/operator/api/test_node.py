"""StrataNode as dataclasses, and the CRD: both say the same."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import yaml

from strata_operator.api import wire
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import GROUP, VERSION
from strata_operator.api.node import (
    NODE_CONDITIONS,
    NODE_KIND,
    NODE_PLURAL,
    PAGE_BYTES,
    GpuOriginals,
    NodeSpec,
    NodeStatus,
    Originals,
    PagesWish,
    StrataNode,
    Tuning,
    Wish,
)
from tests.operator.live.harness import CHART

CRD = yaml.safe_load((CHART / "crds" / "stratanodes.strata.ai.yaml").read_text())
(SERVED,) = CRD["spec"]["versions"]
SCHEMA = SERVED["schema"]["openAPIV3Schema"]["properties"]
JSON_TYPES = {int: "integer", str: "string", bool: "boolean"}


def node_object(**tables: Any) -> dict[str, Any]:
    metadata = {"name": "gpu-1", "uid": "u", "generation": 3}
    return {"apiVersion": "strata.ai/v1alpha1", "kind": NODE_KIND, "metadata": metadata, **tables}


def differences(cls: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Where a dataclass and a schema do not have the same fields of the same types."""
    hints = get_type_hints(cls)
    known = {wire._key(field): field for field in fields(cls)}
    if set(known) != set(schema["properties"]):
        yield f"{path}: {sorted(set(known) ^ set(schema['properties']))}"
        return
    required = {key for key, field in known.items() if field.default is field.default_factory}  # both MISSING
    if required != set(schema.get("required", ())):
        yield f"{path}: required {sorted(required)}"
    for key, field in known.items():
        hint, inner = hints[field.name], schema["properties"][key]
        if get_origin(hint) in (Union, types.UnionType):
            (hint,) = (one for one in get_args(hint) if one is not type(None))
        if get_origin(hint) is tuple:
            hint, inner = get_args(hint)[0], inner["items"]
        if is_dataclass(hint):
            yield from differences(hint, inner, f"{path}.{key}")
        elif inner["type"] != JSON_TYPES[hint]:
            yield f"{path}.{key}: {inner['type']}"


def leaves(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from leaves(inner.get("items", inner), f"{path}.{name}")


def test_spec_and_status_are_those_of_the_crd() -> None:
    assert list(differences(NodeSpec, SCHEMA["spec"], "spec")) == []
    status = {**SCHEMA["status"], "properties": dict(SCHEMA["status"]["properties"])}
    del status["properties"]["conditions"]  # kept apart: their rules are in api/conditions
    assert list(differences(NodeStatus, status, "status")) == []


def test_the_crd_is_closed_described_and_named() -> None:
    assert CRD["metadata"]["name"] == f"{NODE_PLURAL}.{GROUP}"
    assert (CRD["spec"]["names"]["kind"], CRD["spec"]["scope"], SERVED["name"]) == (NODE_KIND, "Cluster", VERSION)
    found = [*leaves(SCHEMA["spec"], "spec"), *leaves(SCHEMA["status"], "status")]
    assert len(found) > 60
    for path, inner in found:
        assert "additionalProperties" not in inner, path
        assert "x-kubernetes-preserve-unknown-fields" not in inner, path
        if ".conditions." not in path:
            assert len(inner.get("description", "")) >= 9, path


def test_words_agree() -> None:
    wish = SCHEMA["spec"]["properties"]["tuning"]["properties"]["models"]["items"]["properties"]
    assert wish["hugepages"]["items"]["properties"]["size"]["enum"] == list(PAGE_BYTES)
    described = SCHEMA["status"]["properties"]["conditions"]["description"]
    assert [one for one in NODE_CONDITIONS if one not in described] == []


def test_a_full_spec_is_read() -> None:
    table = {
        "suspend": True,
        "powerBudgetWatts": 600,
        "tuning": {
            "models": [
                {
                    "model": "llm/qwen3",
                    "gpus": ["GPU-1"],
                    "powerLimitWatts": 280,
                    "smClockMaxMHz": 1800,
                    "memoryClockMaxMHz": 9501,
                    "maxCoreTemperatureC": 80,
                    "maxMemoryTemperatureC": 100,
                    "hugepages": [{"size": "2Mi", "pages": 512}],
                }
            ]
        },
    }
    wish = Wish("llm/qwen3", ("GPU-1",), 280, 1800, 9501, 80, 100, (PagesWish("2Mi", 512),))
    node = StrataNode.parse(node_object(spec=table))
    assert node.spec == NodeSpec(Tuning((wish,)), 600, True)
    assert (node.name, node.uid, node.generation, node.status) == ("gpu-1", "u", 3, NodeStatus())
    assert wire.dump(node.spec) == table


def test_a_spec_of_a_newer_version_is_refused() -> None:
    table = {"tuning": {"models": [{"model": "a/b", "fanPercent": 100}]}}
    with pytest.raises(InvalidSpecError, match=r"spec\.tuning\.models\[0\]\.fanPercent is not known here"):
        StrataNode.parse(node_object(spec=table))


def test_a_status_edited_by_hand_keeps_what_can_be_read() -> None:
    """The originals above all: without them nothing can be put back."""
    status = {
        "observedGeneration": 2,
        "gpus": "none",
        "originals": {"gpus": [{"uuid": "GPU-1", "powerLimitMilliwatts": 300_000}]},
        "conditions": [{"type": "Tuned", "status": "True"}],
    }
    node = StrataNode.parse(node_object(status=status))
    originals = Originals((GpuOriginals("GPU-1", power_limit_milliwatts=300_000),))
    assert node.status == NodeStatus(observed_generation=2, originals=originals)
    assert node.conditions == ({"type": "Tuned", "status": "True"},)
