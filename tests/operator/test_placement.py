from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from strata_operator.agent import report
from strata_operator.agent.fake import FakeDriver, SimulatedCard, gpus_of, h200, rtx3090, rtx4090, rtx4090_48g
from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.agent.health import Health, step
from strata_operator.agent.observe import observe
from strata_operator.api.node import NodeSpec, NodeStatus, StrataNode
from strata_operator.inventory import candidates
from strata_operator.placement import affinity, needs, tolerations
from tests.operator.samples import CPU, NVIDIA, model


def terms(**hardware: Any) -> list[dict[str, list[str]]]:
    """Required labels, each set with its values (or what they must be greater than)."""
    node = affinity(model(hardware={**NVIDIA, **hardware}).hardware)["nodeAffinity"]
    found = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for term in found:
        for one in term["matchExpressions"]:
            assert one["operator"] == ("In" if "product" in one["key"] else "Gt")
    return [{one["key"]: one["values"] for one in term["matchExpressions"]} for term in found]


CARDS = ["NVIDIA-GeForce-RTX-3090", "NVIDIA-GeForce-RTX-4090"]
WITH_BOTH = [*CARDS, "_".join(CARDS)]


def test_a_gpu_model_requires_one_of_the_named_cards_by_either_label() -> None:
    named = ["NVIDIA-GeForce-RTX-3090-Ti", "NVIDIA-GeForce-RTX-4090-D"]
    assert terms(gpus=["RTX3090Ti", "RTX4090D"]) == [
        {"strata.ai/gpu-product": [*named, "NVIDIA-GeForce-RTX-3090-Ti_NVIDIA-GeForce-RTX-4090-D"]},
        {"nvidia.com/gpu.product": named},
    ]


def test_memory_is_asked_of_whoever_tells_it() -> None:
    assert terms(minVramGiB=24) == [
        {"strata.ai/gpu-product": WITH_BOTH, "strata.ai/vram-gib": ["23"]},
        {"nvidia.com/gpu.product": CARDS, "nvidia.com/gpu.memory": ["24063"]},
    ]
    assert 24564 > 24063 > 20480  # an RTX 4090, and a card of 20 GiB


def test_a_link_is_known_to_the_agent_alone() -> None:
    assert terms(minPcie={"generation": 3, "width": 16}) == [
        {"strata.ai/gpu-product": WITH_BOTH, "strata.ai/pcie-generation": ["2"], "strata.ai/pcie-width": ["15"]}
    ]


@pytest.mark.parametrize(
    "hardware",
    [
        {},
        {"gpus": ["RTX4090"]},
        {"gpus": ["RTX3090", "RTX4090", "RTX4090D"]},
        {"minVramGiB": 24},
        {"minVramGiB": 48},
        {"minPcie": {"generation": 4}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "cards",
    [
        pytest.param((rtx4090(1),), id="one card"),
        pytest.param((rtx4090(1), rtx4090_48g(2)), id="one of them with more memory"),
        pytest.param((rtx4090(1), rtx4090(2, max_pcie_generation=3)), id="one of them in a slower slot"),
        pytest.param((rtx4090(1), h200(2)), id="one of them is none that will do"),
        pytest.param((rtx4090(1), rtx3090(2)), id="of two kinds"),
        pytest.param(
            (rtx4090(1), rtx3090(2), rtx4090(3, name="NVIDIA GeForce RTX 4090 D")),
            id="of more kinds than a label names",
        ),
    ],
)
def test_a_node_fits_by_its_inventory_where_a_pod_may_be_scheduled_by_its_labels(
    hardware: dict[str, Any], cards: tuple[SimulatedCard, ...], tmp_path: Path
) -> None:
    """Both are the agent's, and are read apart from each other: by the fit and by the scheduler."""
    seen = observe(gpus_of(FakeDriver(cards)), FakeSysfs(tmp_path), ())
    health = step(Health(), seen, now=0.0, wall=datetime(2026, 1, 1, tzinfo=UTC))
    status = report.status(report.Turn(1, None, seen, health), NodeStatus())
    node, labels = StrataNode("n", "uid", 1, NodeSpec(), status), report.labels(seen)
    is_candidate = bool(candidates(model(hardware={**NVIDIA, **hardware}).hardware, [node]))
    may_be_scheduled = all(
        value is not None and (value in values if "product" in label else int(value) > int(values[0]))
        for label, values in terms(**hardware)[0].items()
        for value in [labels[label]]
    )
    assert is_candidate == may_be_scheduled


def test_the_default_cards_are_not_time_sliced_ones() -> None:
    text = str(affinity(model(hardware=NVIDIA).hardware))
    assert "'NVIDIA-GeForce-RTX-3090', 'NVIDIA-GeForce-RTX-4090'" in text
    assert "SHARED" not in text


def test_a_cpu_model_keeps_off_gpu_nodes_where_it_can() -> None:
    node = affinity(model(hardware=CPU).hardware)["nodeAffinity"]
    assert list(node) == ["preferredDuringSchedulingIgnoredDuringExecution"]  # a lone GPU node may still serve it
    assert "DoesNotExist" in str(node)


def test_only_gpu_models_tolerate_the_gpu_taint() -> None:
    gpu, cpu = model(hardware=NVIDIA), model(hardware=CPU)
    assert tolerations(cpu.hardware, cpu.scheduling) == []
    assert tolerations(gpu.hardware, gpu.scheduling) == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_the_user_s_tolerations_come_first() -> None:
    made = model(hardware=NVIDIA, scheduling={"tolerations": [{"key": "a", "operator": "Exists"}]})
    assert tolerations(made.hardware, made.scheduling)[0] == {"key": "a", "operator": "Exists"}


def test_needs_names_the_cards_and_the_labels_by_which_they_are_found() -> None:
    named = "strata.ai/gpu-product or nvidia.com/gpu.product NVIDIA-GeForce-RTX-3090 or NVIDIA-GeForce-RTX-4090"
    assert f"labelled {named}" in needs(model(hardware=NVIDIA).hardware)
    assert "gpu" not in needs(model(hardware=CPU).hardware)
    whole = {**NVIDIA, "minVramGiB": 24, "minPcie": {"generation": 3, "width": 16}}
    told = needs(model(hardware=whole).hardware)
    assert "labelled strata.ai/gpu-product NVIDIA-GeForce-RTX-3090 or" in told  # which the agent alone sets
    assert "RTX-4090 of 24 GiB at PCIe generation 3 with 16 lanes, cpu 4" in told
