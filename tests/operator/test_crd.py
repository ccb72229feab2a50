"""The CRD and the operator's dataclasses say the same."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from manifests import reference
from strata_operator.api import model as api
from strata_operator.api.conditions import reason
from strata_operator.api.engine import (
    BLOCK_SIZES,
    EXPERT_PLACEMENTS,
    LOG_LEVELS,
    PREDICTORS,
    REASONING_PARSERS,
    TOOL_PARSERS,
)
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.hardware import ACCELERATORS, GPUS
from strata_operator.api.model import FORMATS, GROUP_SIZE, STRATEGIES, StrataModel
from strata_operator.api.route import KINDS as ROUTE_KINDS
from strata_operator.placement import PRODUCTS
from tests.operator.live.harness import ROOT
from tests.operator.samples import FULL_SPECS, NVIDIA, child, model, model_object, node_object, pod

CRD = yaml.safe_load((ROOT / "charts" / "strata" / "crds" / "stratamodels.strata.ai.yaml").read_text())
(VERSION,) = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]
SPEC = SCHEMA["spec"]
_NODE_CRD = yaml.safe_load((ROOT / "charts" / "strata" / "crds" / "stratanodes.strata.ai.yaml").read_text())
NODE_SCHEMA = _NODE_CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
NODE_SPEC = NODE_SCHEMA["spec"]


def paths(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field that holds a value, with its schema."""
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}.{name}"
        element = inner.get("items", inner)
        if "properties" in element:
            yield from paths(element, path)
        else:
            yield path, inner


OPEN = {".scheduling.nodeSelector", ".podTemplate.metadata.labels", ".podTemplate.metadata.annotations"} | {
    ".podTemplate.spec",
    ".route.annotations",
    ".route.headers",
}


def given(value: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every field of a spec that holds a value in the words of ``paths``, and the steps to it."""
    for name, inner in value.items():
        path = f"{prefix}.{name}"
        for step, element in enumerate(inner) if isinstance(inner, list) else [(None, inner)]:
            here = (name,) if step is None else (name, step)
            if isinstance(element, dict) and path not in OPEN:
                for found, steps in given(element, path):
                    yield found, (*here, *steps)
            elif not step:
                yield path, (name,)


def test_every_field_of_the_crd_is_read_by_the_operator() -> None:
    assert sorted(path for path, _ in paths(SPEC)) == sorted({path for full in FULL_SPECS for path, _ in given(full)})
    for full in FULL_SPECS:
        StrataModel.parse(model_object(**full))  # which refuses a field that it does not read


# Fields whose one value is what there is without them.
ONE_VALUE = {
    ".hardware.count",
    ".quantization.groupSize",
    ".engine.cpuExperts",
}


@pytest.mark.parametrize("wanted", FULL_SPECS, ids=["HTTPRoute", "Ingress"])
def test_every_field_that_the_operator_reads_changes_what_it_does(wanted: dict[str, Any]) -> None:
    """Dropping any one field of the full spec gives another model, or none: none is read and then forgotten."""
    full = StrataModel.parse(model_object(**wanted))
    for path, steps in given(wanted):
        if path in ONE_VALUE:
            continue
        spec = copy.deepcopy(wanted)
        table: Any = spec
        for step in steps[:-1]:
            table = table[step]
        del table[steps[-1]]
        with contextlib.suppress(InvalidSpecError):  # a field that is needed, alone or beside another
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
        (("quantization", "format"), FORMATS),
        (("quantization", "groupSize"), (GROUP_SIZE,)),
        (("hardware", "accelerator"), ACCELERATORS),
        (("engine", "blockSize"), BLOCK_SIZES),
        (("engine", "toolCallParser"), TOOL_PARSERS),
        (("engine", "reasoningParser"), REASONING_PARSERS),
        (("engine", "logLevel"), LOG_LEVELS),
        (("engine", "expertPlacement"), EXPERT_PLACEMENTS),
        (("rollout", "strategy"), STRATEGIES),
        (("route", "kind"), ROUTE_KINDS),
    ],
)
def test_choices_agree(path: tuple[str, str], values: tuple[Any, ...]) -> None:
    assert SPEC["properties"][path[0]]["properties"][path[1]]["enum"] == list(values)


def test_parsers_are_those_of_the_engine() -> None:
    from strata.server.output.formats import REASONING_FORMATS, TOOL_FORMATS

    assert ("auto", "none", *TOOL_FORMATS) == TOOL_PARSERS
    assert ("auto", "none", *REASONING_FORMATS) == REASONING_PARSERS


def test_what_is_done_about_missing_experts_is_the_engine_s_choice() -> None:
    from strata.config import engine

    assert EXPERT_PLACEMENTS == engine.EXPERT_PLACEMENTS
    assert PREDICTORS == engine.PREFETCH
    predictor = SPEC["properties"]["engine"]["properties"]["prefetch"]["properties"]["predictor"]
    assert predictor["enum"] == list(PREDICTORS)


def test_group_size_is_that_of_the_formats() -> None:
    from strata.quant import get

    sizes = {name: get(name).num_bytes(1, GROUP_SIZE * 8) for name in ("int4", "int8")}
    assert sizes == {"int4": 148, "int8": 272}  # 4.625 and 8.5 bits a weight


def test_defaults_that_are_told_are_the_engine_s() -> None:
    from strata.cli.serve_options import DEFAULT_STALL_SECONDS
    from strata.config import CacheConfig, DeviceConfig, SchedulerConfig
    from strata.config.engine import CPU_STEP_TOKENS
    from strata.plan.step import CARD_GIB, CARD_TOKENS, LARGE_CARD_GIB, LARGE_CARD_TOKENS

    fields = SPEC["properties"]["engine"]["properties"]
    large = f"{LARGE_CARD_TOKENS} from {LARGE_CARD_GIB} GiB on"
    on_cards = f"{CARD_TOKENS} on a card of {CARD_GIB} GiB or more, {large}"
    for field, value in (
        ("maxNumSeqs", SchedulerConfig().max_num_seqs),
        ("maxNumBatchedTokens", f"{CPU_STEP_TOKENS} on a CPU, {on_cards}"),
        ("maxWaiting", SchedulerConfig().max_waiting),
        ("decodeLatencyMs", int(1000 * (SchedulerConfig().decode_latency_seconds or 0))),
        ("blockSize", CacheConfig().block_size),
        ("pipelineDepth", DeviceConfig().pipeline_depth),
        ("prefixCache", str(CacheConfig().prefix_cache).lower()),
        ("loadStallSeconds", int(DEFAULT_STALL_SECONDS)),
    ):
        assert f"{value} where it is left out" in fields[field]["description"], field


@pytest.mark.parametrize("name", ["stratamodels.strata.ai.yaml", "stratanodes.strata.ai.yaml"])
def test_the_copy_in_manifests_is_the_chart_s(name: str) -> None:
    assert (ROOT / "manifests" / "crds" / name).read_text() == (ROOT / "charts" / "strata" / "crds" / name).read_text()


def test_the_document_s_table_is_the_crd_s() -> None:
    document = reference.DOCUMENT.read_text()
    assert document == reference.with_reference(document), "run `make manifests`"


def test_every_card_has_a_node_label() -> None:
    cards = SPEC["properties"]["hardware"]["properties"]["gpus"]["items"]["enum"]
    assert cards == list(GPUS) == list(PRODUCTS)


def test_every_flag_of_a_field_is_closed_to_extra_args() -> None:
    from strata_operator.render.arguments import arguments

    rules = SPEC["properties"]["engine"]["properties"]["extraArgs"]["items"]["x-kubernetes-validations"]
    rule = next(one["rule"] for one in rules if "(model|" in one["rule"])
    for argument in arguments(model(**FULL_SPECS[0]), grace_seconds=1):
        flag = argument.split("=")[0].removeprefix("--")
        if argument.startswith("--") and flag != "allowed-origins":
            assert flag in rule.replace("|", " ").replace("(", " ").replace(")", " ").split()


def tables(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of the schema, tables too."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{prefix}.{name}", inner
        yield from tables(inner.get("items", inner), f"{prefix}.{name}")


def test_every_field_is_described() -> None:
    undescribed = [path for path, inner in tables(SPEC) if len(inner.get("description", "")) < 10]
    assert undescribed == []


def test_every_number_and_text_has_bounds() -> None:
    """What the API server can refuse, it refuses."""
    unbounded = [
        path
        for path, inner in tables(SPEC)
        if "enum" not in inner
        and not {"maximum", "maxLength", "maxItems", "maxProperties", "x-kubernetes-validations"} & set(inner)
        and inner.get("type") in ("integer", "string", "array")
    ]
    assert unbounded == [".engine.numKvTokens", ".scheduling.tolerations.tolerationSeconds"]  # no number is too large


def test_the_status_written_is_in_the_schema() -> None:
    """What the schema does not know would be pruned, and then written again for ever."""
    from datetime import UTC, datetime

    from strata_operator.api.figures import Traffic
    from strata_operator.api.node import StrataNode
    from strata_operator.api.observed import Observed
    from strata_operator.cached import MOST_NODES
    from strata_operator.eviction import Stranded
    from strata_operator.fit import judge, shape_of
    from strata_operator.plan import Plan
    from strata_operator.render import children, revision_of
    from strata_operator.rollout import Failure, Memory, Served
    from strata_operator.status import Outcome, status
    from strata_operator.target import Facts, Target
    from strata_operator.tuning import verdict

    made, desired = model(), children(model(), engine_image="e")
    qwen = model(model={"source": "hf://Qwen/Qwen3-30B-A3B"}, engine={"maxModelLen": 4096}, hardware=NVIDIA)
    there = {kind: child(manifest) for kind, manifest in desired.items()}
    traffic = Traffic(100, 1, ((0.1, 1),), experts=2, hits=1)
    served = pod(ready=True, revision=revision_of(desired["Deployment"]), traffic=traffic)
    started = replace(served, created="2026-01-01T00:00:00Z", ready_since="2026-01-01T00:00:14Z")
    seen = Observed(there, (started,))
    fit = judge(qwen, shape_of(qwen), [StrataNode.parse(node_object())])
    tuned = verdict(made, {}, ())
    memory = Memory(Served("a", 1, {}), Failure("b", 2, "EngineFailed", "why"))
    target = Target(made, desired, revision_of(desired["Deployment"]), None, memory)
    facts = Facts({"status": {}}, made, seen, fit, datetime.now(UTC))
    written = status(facts, Outcome(target, Plan(()), None, Stranded(), tuned))
    for name, kept in written["rollout"].items():
        assert sorted(kept) == sorted(SCHEMA["status"]["properties"]["rollout"]["properties"][name]["properties"])
    known = SCHEMA["status"]["properties"]
    assert fit.plan is not None
    assert sorted(fit.plan) == sorted(known["plan"]["properties"])
    assert sorted(written["cache"]) == sorted(known["cache"]["properties"])
    assert known["cache"]["properties"]["nodes"]["maxItems"] == MOST_NODES
    assert sorted(written["lastStart"]) == sorted(known["lastStart"]["properties"])
    assert sorted(written["measured"]) == sorted(known["measured"]["properties"])
    assert sorted(written) == sorted(known)
    for condition in written["conditions"]:
        assert sorted(condition) == sorted(known["conditions"]["items"]["properties"])


@hypothesis.settings(deadline=None)
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
        StrataModel.parse(obj)
