"""The CRD and the operator's dataclasses say the same."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from strata_operator.api import model as api
from strata_operator.api.conditions import reason
from strata_operator.api.model import StrataModel
from strata_operator.placement import PRODUCTS
from tests.operator.live.harness import ROOT
from tests.operator.samples import FULL_SPEC, child, model, model_object, pod

CRD = yaml.safe_load((ROOT / "charts" / "strata" / "crds" / "stratamodels.strata.ai.yaml").read_text())
(VERSION,) = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]
SPEC = SCHEMA["spec"]


def paths(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field that holds a value, with its schema."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}.{name}"
        element = inner.get("items", inner)
        if "properties" in element:
            yield from paths(element, path)
        else:
            yield path, inner


def given(value: Any, prefix: str = "") -> Iterator[str]:
    """Every field of a spec that holds a value, in the same words."""
    for name, inner in value.items():
        path = f"{prefix}.{name}"
        first = inner[0] if isinstance(inner, list) else inner
        if isinstance(first, dict) and name != "nodeSelector":
            yield from given(first, path)
        else:
            yield path


def test_every_field_of_the_crd_is_read_by_the_operator() -> None:
    assert sorted(path for path, _ in paths(SPEC)) == sorted(given(FULL_SPEC))
    StrataModel.parse(model_object(**FULL_SPEC))  # which refuses a field that it does not read


def test_every_field_that_the_operator_reads_changes_what_it_does() -> None:
    """Dropping any one field of the full spec gives another model: none is read and then forgotten."""
    full = StrataModel.parse(model_object(**FULL_SPEC))
    required = {".model.source", ".hardware.accelerator", ".hardware.cpu", ".hardware.memory", ".hardware.count"}
    for path in given(FULL_SPEC):
        if path in required:
            continue
        spec = copy.deepcopy(FULL_SPEC)
        *tables, last = path.strip(".").split(".")
        table: Any = spec
        for name in tables:
            table = table[name][0] if isinstance(table[name], list) else table[name]
        del table[last]
        assert StrataModel.parse(model_object(**spec)) != full, path


def test_defaults_agree() -> None:
    hardware = {"accelerator": "cpu", "cpu": 1, "memory": "1Gi"}
    least: dict[str, Any] = {"model": {"source": "builtin://x"}, "hardware": hardware}

    def filled(schema: dict[str, Any], value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        made = dict(value)
        for name, inner in schema.get("properties", {}).items():
            if name not in made and "default" in inner:
                made[name] = inner["default"]
            if name in made:
                made[name] = filled(inner, made[name])
        return made

    completed = filled(SPEC, least)
    assert completed != least
    assert StrataModel.parse(model_object(**completed)) == StrataModel.parse(model_object(**least))


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (("quantization", "format"), api.FORMATS),
        (("hardware", "accelerator"), api.ACCELERATORS),
        (("engine", "blockSize"), api.BLOCK_SIZES),
    ],
)
def test_choices_agree(path: tuple[str, str], values: tuple[Any, ...]) -> None:
    assert SPEC["properties"][path[0]]["properties"][path[1]]["enum"] == list(values)


def test_defaults_that_are_told_are_the_engine_s() -> None:
    from strata.config import CacheConfig, SchedulerConfig

    fields = SPEC["properties"]["engine"]["properties"]
    for field, value in (
        ("maxNumSeqs", SchedulerConfig().max_num_seqs),
        ("maxNumBatchedTokens", SchedulerConfig().max_num_batched_tokens),
        ("blockSize", CacheConfig().block_size),
    ):
        assert f"{value} where it is left out" in fields[field]["description"]


@pytest.mark.parametrize("name", ["stratamodels.strata.ai.yaml", "stratanodes.strata.ai.yaml"])
def test_the_copy_in_manifests_is_the_chart_s(name: str) -> None:
    assert (ROOT / "manifests" / "crds" / name).read_text() == (ROOT / "charts" / "strata" / "crds" / name).read_text()


def test_every_card_has_a_node_label() -> None:
    cards = SPEC["properties"]["hardware"]["properties"]["gpus"]["items"]["enum"]
    assert cards == list(api.GPUS) == list(PRODUCTS)


def test_every_flag_of_a_field_is_closed_to_extra_args() -> None:
    from strata_operator.render.deployment import arguments

    rule = SPEC["properties"]["engine"]["properties"]["extraArgs"]["items"]["x-kubernetes-validations"][0]["rule"]
    for argument in arguments(model(**FULL_SPEC)):
        flag = argument.split("=")[0].removeprefix("--")
        if argument.startswith("--") and flag != "max-waiting":
            assert flag in rule.replace("|", " ").replace("(", " ").replace(")", " ").split()


def test_every_field_is_described() -> None:
    undescribed = [path for path, inner in paths(SPEC) if len(inner.get("description", "")) < 10]
    assert undescribed == []


def test_the_status_written_is_in_the_schema() -> None:
    """What the schema does not know would be pruned, and then written again for ever."""
    from datetime import UTC, datetime

    from strata_operator.api.observed import Observed
    from strata_operator.plan import Plan
    from strata_operator.render import children
    from strata_operator.status import status

    made, desired = model(), children(model(), engine_image="e")
    there = {kind: child(manifest) for kind, manifest in desired.items()}
    seen = Observed(there, (pod(),))
    written = status(made, desired, seen, Plan(()), previous={}, now=datetime.now(UTC))
    known = SCHEMA["status"]["properties"]
    assert sorted(written) == sorted(known)
    for condition in written["conditions"]:
        assert sorted(condition) == sorted(known["conditions"]["items"]["properties"])


@hypothesis.given(st.text())
@hypothesis.example("Multi-Attach")
@hypothesis.example("1st/try")
@hypothesis.example("x" * 2000)
def test_every_word_of_somebody_else_becomes_a_reason_that_the_schema_allows(word: str) -> None:
    """One that it does not allow would keep the whole status from being written."""
    schema = SCHEMA["status"]["properties"]["conditions"]["items"]["properties"]["reason"]
    made = reason(word, otherwise="PodFailed")
    assert re.search(schema["pattern"], made)
    assert schema["minLength"] <= len(made) <= schema["maxLength"]


def test_names_and_subresources() -> None:
    assert CRD["metadata"]["name"] == f"{api.PLURAL}.{api.GROUP}"
    assert CRD["spec"]["names"]["kind"] == api.KIND
    assert VERSION["name"] == api.VERSION
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


@pytest.mark.parametrize(
    "example", sorted((ROOT / "manifests" / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_examples_are_read(example: Any) -> None:
    for obj in yaml.safe_load_all(example.read_text()):
        obj["metadata"] |= {"namespace": "ns", "uid": "u", "generation": 1}
        assert StrataModel.parse(obj).source.builtin == "smollm2-135m"
