from __future__ import annotations

import copy
import re
from math import ceil
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.config import EngineConfig
from strata.plan.known import known
from strata.plan.memory import PROCESS_BYTES, DeviceMemory, size_memory
from strata.plan.parts import loaded_parts
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import StrataModel
from strata_operator.api.node import StrataNode
from strata_operator.fit import Verdict, check_source, judge, least_vram_gib, shape_of
from tests.operator.samples import CPU, NVIDIA, gpu, model, node_object

QWEN: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-30B-A3B"},
    "engine": {"maxModelLen": 8192, "maxNumSeqs": 4},
    "hardware": {**NVIDIA, "gpus": ["RTX3090", "RTX4090"]},
}


# A model without experts: all of it has to be in the card.
DENSE: dict[str, Any] = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "quantization": {"format": "bf16"}}


def verdict(*nodes: dict[str, Any], **spec: Any) -> Verdict:
    made = model(**{**copy.deepcopy(QWEN), **spec})
    parsed = [StrataNode.parse(obj) for obj in nodes]
    # The reconciler keeps a verdict by these: a look at anything else is an error here.
    asked = {field: getattr(made, field) for field in ("source", "revision", "format", "engine", "hardware")}
    return judge(cast("StrataModel", SimpleNamespace(**asked)), shape_of(made), parsed)


def test_a_built_in_model_that_is_not_there_is_refused_with_those_that_are() -> None:
    unknown = {"source": "builtin://smollm3"}
    words = (
        "spec.model.source is 'builtin://smollm3'; there is no such built-in model, allowed are builtin://smollm2-135m"
    )
    with pytest.raises(InvalidSpecError, match=f"^{words}$"):
        check_source(model(model=unknown))
    check_source(model())
    check_source(model(model=unknown, image="example.com/engine:with-more"))
    check_source(model(model={"source": "hf://ORG/NAME"}))


def test_what_fits_says_where_and_how_fast() -> None:
    found = verdict(node_object("b"), node_object("a"))
    assert (found.fits, found.message, found.nodes) == (True, "fits on a, b", ("a", "b"))
    assert found.plan is not None
    assert found.plan["node"] == "a"
    assert found.plan["limitingResource"] == "device memory"
    # 16.7 GiB of weights, 4 sequences of 8,192 tokens at 96 KiB, and a workspace.
    assert 20 << 30 < found.plan["vramBytes"] < 22 << 30
    assert found.plan["hostBytes"] == 0
    assert 0 < found.plan["expectedTokensPerSecond"] < found.plan["upperBoundTokensPerSecond"]


def test_the_fastest_node_comes_first() -> None:
    slow = node_object("a", gpus=[gpu("NVIDIA-GeForce-RTX-3090")])
    assert verdict(slow, node_object("b")).nodes == ("b", "a")


def test_without_a_calibration_nothing_is_expected() -> None:
    found = verdict(node_object(calibration=None))
    assert found.plan is not None
    assert "expectedTokensPerSecond" not in found.plan


@pytest.mark.parametrize(
    ("nodes", "spec", "reason", "words"),
    [
        pytest.param(
            [node_object("small", gpus=[gpu(vram_gib=16)]), node_object("tiny", gpus=[gpu(vram_gib=12)])],
            DENSE,
            "NotEnoughVram",
            [
                "needs 17.",
                "; the best matching node, small, has 14.3 GiB",
                "others: tiny 10.7 GiB of VRAM",
                "What fits: ",
            ],
            id="the card is too small",
        ),
        pytest.param(
            [node_object()],
            {"engine": {"maxModelLen": 40960, "numKvTokens": 400_000}},
            "NotEnoughVram",
            ["gpu-1, has 21.5 GiB", "engine.numKvTokens"],
            id="the KV cache is too large, and what would fit",
        ),
        pytest.param(
            [node_object("gpu-3", memory_gib=52)],
            {"hardware": {**NVIDIA, "hostMemory": {"pinned": "60Gi"}, "memory": "64Gi"}},
            "NotEnoughMemory",
            ["needs 64.0 GiB of host memory; the best matching node, gpu-3, has 52.0 GiB"],
            id="the node has not the host memory",
        ),
        pytest.param(
            [node_object(memory_gib=48)],
            {"hardware": {**NVIDIA, "hostMemory": {"pinned": "48Gi", "hugepages": "2Mi"}, "memory": "4Gi"}},
            "NotEnoughMemory",
            ["needs 52.0 GiB of host memory"],
            id="huge pages are host memory, too",
        ),
        pytest.param(
            [node_object(memory_gib=48)],
            {"model": {"source": "hf://org/unheard-of"}, "hardware": {**NVIDIA, "memory": "52Gi"}},
            "NotEnoughMemory",
            ["needs 52.0 GiB of host memory; the best matching node, gpu-1, has 48.0 GiB"],
            id="whatever it serves, the node has not the memory",
        ),
        pytest.param(
            [node_object()],
            {"hardware": {**NVIDIA, "cpu": 32}},
            "NotEnoughCpus",
            ["needs 32 CPUs; the best matching node, gpu-1, has 16 CPUs"],
            id="the node has not the CPUs",
        ),
        pytest.param(
            [node_object("small", gpus=[gpu(vram_gib=16)]), node_object("poor", memory_gib=8)],
            DENSE,
            "NotEnoughVram",
            ["needs 1", "the best matching node, small", "others: poor 8.0 GiB of host memory"],
            id="each node lacks something else",
        ),
        pytest.param(
            [node_object("few", memory_gib=200), node_object("much", memory_gib=28)],
            {"hardware": {**NVIDIA, "cpu": 32, "memory": "30Gi"}},
            "NotEnoughMemory",
            ["needs 30.0 GiB of host memory; the best matching node, much, has 28.0 GiB. others: few 16"],
            id="CPUs are not compared with bytes",
        ),
        pytest.param(
            [node_object("a", gpus=[gpu("NVIDIA-GeForce-RTX-4080")]), node_object("b", gpus=[gpu(vram_gib=48)])],
            {"hardware": {**NVIDIA, "minVramGiB": 80}},
            "NoMatchingNode",
            ["of 80 GiB", "; b has NVIDIA-GeForce-RTX-4090 (48 GiB of VRAM); a has NVIDIA-GeForce-RTX-4080 (another"],
            id="the node that comes closest is named first",
        ),
        pytest.param(
            [node_object("gpu-2", gpus=[gpu("NVIDIA-GeForce-RTX-4080")])],
            {},
            "NoMatchingNode",
            ["NVIDIA-GeForce-RTX-3090 or NVIDIA-GeForce-RTX-4090", "gpu-2 has NVIDIA-GeForce-RTX-4080 (another card)"],
            id="no such card",
        ),
        pytest.param(
            [node_object()],
            {"engine": {"maxModelLen": 1_000_000}},
            "InvalidSettings",
            ["engine.maxModelLen is 1000000; the checkpoint's positions reach 40960"],
            id="beyond the checkpoint's positions",
        ),
        pytest.param(
            [],
            {
                "model": {"source": "builtin://smollm2-135m"},
                "hardware": {"accelerator": "cpu", "cpu": 1, "memory": "512Mi"},
                "engine": {},
            },
            "NotEnoughMemory",
            [
                "needs 1.1 GiB, and spec.hardware.memory is 512Mi: weights 125.8 MiB, ",
                "KV cache of 8192 tokens 180.0 MiB",
                "the process 464.0 MiB. What fits: spec.hardware.memory 2Gi",
            ],
            id="a CPU model in too little memory",
        ),
    ],
)
def test_what_does_not_fit_says_what_is_short_in_numbers(
    nodes: list[dict[str, Any]], spec: dict[str, Any], reason: str, words: list[str]
) -> None:
    found = verdict(*nodes, **spec)
    assert (found.fits, found.reason, found.plan) == (False, reason, None), found.message
    assert found.trouble is not None
    for word in words:
        assert word in found.message


@pytest.mark.parametrize(
    ("nodes", "spec", "reason"),
    [
        pytest.param([node_object()], {"model": {"source": "hf://org/unheard-of"}}, "ShapeUnknown", id="no shape"),
        pytest.param(
            [node_object()],
            {"model": {"source": "hf://Qwen/Qwen3-30B-A3B", "revision": "v2"}},
            "ShapeUnknown",
            id="another revision may have another shape",
        ),
        pytest.param([], {}, "NoInventory", id="no agent"),
    ],
)
def test_what_is_not_known_is_said_and_stops_nothing(
    nodes: list[dict[str, Any]], spec: dict[str, Any], reason: str
) -> None:
    found = verdict(*nodes, **spec)
    assert (found.fits, found.reason, found.trouble) == (None, reason, None)


def test_a_cpu_model_fits_into_its_own_memory_whatever_the_nodes() -> None:
    spec: dict[str, Any] = {
        "model": {"source": "builtin://smollm2-135m"},
        "hardware": {"accelerator": "cpu", "cpu": 1, "memory": "3Gi"},
        "engine": {"maxModelLen": 2048},
    }
    found = verdict(**spec)
    assert (found.fits, found.nodes) == (True, ())
    assert found.message.endswith("whether a node has that free, the scheduler says")
    assert found == verdict(node_object(), **spec)
    assert found.plan is not None
    assert 0 < found.plan["hostBytes"] < 3 << 30


@pytest.mark.parametrize("memory", ["512Mi", "600Mi", "940Mi", "1Gi", "1200Mi"])
def test_a_cpu_model_fits_where_its_engine_starts(memory: str) -> None:
    """What the engine's planner says once the process itself has taken its part."""
    hardware = {"accelerator": "cpu", "cpu": 1, "memory": memory}
    spec: dict[str, Any] = {"model": {"source": "builtin://smollm2-135m"}, "hardware": hardware, "engine": {}}
    shape = known("builtin://smollm2-135m")
    assert shape is not None
    left = model(**spec).hardware.memory_bytes - PROCESS_BYTES
    weights = ceil(loaded_parts(shape.config, "int4", "cpu").total)
    settings = EngineConfig(model="", dtype="int4")
    plan = size_memory(shape.config, settings, DeviceMemory("cpu", left, left), weights, 2)
    assert verdict(**spec).fits is plan.fits
    assert plan.fits is (memory == "1200Mi")


def test_the_driver_s_part_of_the_card_is_not_filled() -> None:
    nearly_all = {"maxModelLen": 8192, "maxNumSeqs": 1, "gpuMemoryUtilization": "1.0", "numKvTokens": 40_000}
    free = gpu(usableVramBytes=(24 << 30) - (12 << 20))
    assert verdict(node_object(gpus=[free]), **{**DENSE, "engine": nearly_all}).fits is True
    kept = gpu(usableVramBytes=20 << 30)
    assert verdict(node_object(gpus=[kept]), **{**DENSE, "engine": nearly_all}).fits is False


def test_experts_beyond_the_card_are_in_host_memory() -> None:
    small = node_object(gpus=[gpu(vram_gib=12)])
    found = verdict(small)
    assert found.fits is True
    assert found.plan is not None
    assert 15 << 30 < found.plan["hostBytes"] < 17 << 30  # all of them: VRAM is a cache
    assert found.plan["vramBytes"] < 12 << 30
    assert found.plan["limitingResource"] == "experts from host memory"
    whole = verdict(node_object())
    assert whole.plan is not None
    assert found.plan["upperBoundTokensPerSecond"] < whole.plan["upperBoundTokensPerSecond"]


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param({"memory": "4Gi"}, id="what the pod has but for the server's"),
        pytest.param({"hostMemory": {"pinned": "3Gi"}, "memory": None}, id="as much as is asked for"),
        pytest.param({"hostMemory": {"pinned": "3Gi", "hugepages": "2Mi"}, "memory": "24Gi"}, id="too few huge pages"),
    ],
)
def test_a_pod_with_too_little_host_memory_for_them(memory: dict[str, Any]) -> None:
    small = node_object(gpus=[gpu(vram_gib=12)])
    found = verdict(small, hardware={**NVIDIA, **memory})
    assert (found.fits, found.reason) == (False, "NotEnoughMemory")
    assert "of host memory for experts; the pod on gpu-1 has 3.0 GiB" in found.message
    assert verdict(node_object(), hardware={**NVIDIA, **memory}).fits is True


@pytest.mark.parametrize("max_model_len", [1024, 32768])
def test_a_cpu_model_fits_in_the_memory_that_it_is_told_to_set(max_model_len: int) -> None:
    engine, hardware = {"maxModelLen": max_model_len}, {"accelerator": "cpu", "cpu": 4, "memory": "2Gi"}
    found = verdict(engine=engine, hardware=hardware)
    named = re.search(r"What fits: .*spec\.hardware\.memory (\d+Gi)$", found.message)
    assert named is not None
    assert verdict(engine=engine, hardware={**hardware, "memory": named[1]}).fits is True


def test_experts_that_must_be_in_the_card() -> None:
    engine = {**QWEN["engine"], "expertPlacement": "vram"}
    assert verdict(node_object(), engine=engine).fits is True
    small = verdict(node_object(gpus=[gpu(vram_gib=16)]), engine=engine)
    assert (small.fits, small.reason) == (False, "NotEnoughVram")
    assert "needs 17." in small.message or "needs 18." in small.message
    assert "engine.expertPlacement is vram; auto needs less" in small.message
    least = least_vram_gib(model(**{**QWEN, "engine": engine}))
    assert least is not None
    assert 16 < least <= 24


def test_experts_in_vram_may_be_fewer_than_there_is_room_for() -> None:
    few = verdict(node_object(), engine={**QWEN["engine"], "expertVramGiB": 4})
    assert few.plan is not None
    assert few.plan["hostBytes"] > 11 << 30


@pytest.mark.parametrize(
    ("memory", "hugepages", "host_gib"),
    [
        pytest.param("40Gi", None, 28.7, id="all of them are in host memory"),
        pytest.param("24Gi", None, 23.0, id="what it has no room for stays in the card"),
        pytest.param("12Gi", None, None, id="some would be on disk"),
        pytest.param("24Gi", "1Gi", None, id="huge pages hold all or none"),
    ],
)
def test_experts_are_where_there_is_room(memory: str, hugepages: str | None, host_gib: float | None) -> None:
    hardware: dict[str, Any] = {**NVIDIA, "memory": memory}
    if hugepages is not None:
        hardware["hostMemory"] = {"pinned": "23Gi", "hugepages": hugepages}
    found = verdict(node_object(), quantization={"format": "int8"}, hardware=hardware)
    if host_gib is None:
        assert (found.fits, found.reason) == (False, "NotEnoughMemory")
    else:
        assert found.plan is not None
        assert found.plan["hostBytes"] / (1 << 30) == pytest.approx(host_gib, abs=0.1)


@pytest.mark.parametrize("max_model_len", [4096, 16384])
@pytest.mark.parametrize("share", ["0.80", "0.95"])
@pytest.mark.parametrize("spec", [DENSE, {}, {"hardware": {**NVIDIA, "memory": "8Gi"}}], ids=["dense", "all", "some"])
def test_the_least_card_is_the_least_that_fits(max_model_len: int, share: str, spec: dict[str, Any]) -> None:
    """What is asked of labels agrees with what is judged of an inventory."""
    engine = {"maxModelLen": max_model_len, "maxNumSeqs": 1, "gpuMemoryUtilization": share}
    least = least_vram_gib(model(**{**QWEN, **spec, "engine": engine}))
    assert least is not None

    def fits(vram_gib: float) -> bool | None:
        whole = gpu(vramBytes=int(vram_gib * (1 << 30)), usableVramBytes=int(vram_gib * (1 << 30)))
        return verdict(node_object(gpus=[whole]), **{**spec, "engine": engine}).fits

    assert fits(least + 0.499) is True  # the largest card that is called so
    assert fits(least - 0.501) is False


def test_the_least_card_is_not_known_of_what_is_not() -> None:
    assert least_vram_gib(model(hardware=NVIDIA, model={"source": "hf://org/unheard-of"})) is None
    assert least_vram_gib(model(hardware=CPU)) is None
    assert least_vram_gib(model(**{**QWEN, "engine": {"maxModelLen": 10**7}})) is None


def test_a_message_does_not_depend_on_the_order_of_nodes() -> None:
    small, tiny = node_object("small", gpus=[gpu(vram_gib=16)]), node_object("tiny", gpus=[gpu(vram_gib=12)])
    assert verdict(small, tiny, **DENSE) == verdict(tiny, small, **DENSE)
