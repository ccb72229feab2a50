from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.node import StrataNode
from strata_operator.inventory import candidates
from strata_operator.placement import affinity, needs, tolerations
from tests.operator.samples import CPU, NVIDIA, model, node_object


def terms(**hardware: Any) -> list[dict[str, list[str]]]:
    """Required labels, each set with its values (or what they must be greater than)."""
    node = affinity(model(hardware={**NVIDIA, **hardware}).hardware)["nodeAffinity"]
    found = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for term in found:
        for one in term["matchExpressions"]:
            assert one["operator"] == ("In" if "product" in one["key"] else "Gt")
    return [{one["key"]: one["values"] for one in term["matchExpressions"]} for term in found]


CARDS = ["NVIDIA-GeForce-RTX-3090", "NVIDIA-GeForce-RTX-4090"]


def test_a_gpu_model_requires_one_of_the_named_cards_by_either_label() -> None:
    named = ["NVIDIA-GeForce-RTX-3090-Ti", "NVIDIA-GeForce-RTX-4090-D"]
    assert terms(gpus=["RTX3090Ti", "RTX4090D"]) == [
        {"strata.ai/gpu-product": named},
        {"nvidia.com/gpu.product": named},
    ]


def test_memory_is_asked_of_whoever_tells_it() -> None:
    assert terms(minVramGiB=24) == [
        {"strata.ai/gpu-product": CARDS, "strata.ai/vram-gib": ["23"]},
        {"nvidia.com/gpu.product": CARDS, "nvidia.com/gpu.memory": ["24063"]},
    ]
    assert 24564 > 24063 > 20480  # an RTX 4090, and a card of 20 GiB


def test_a_link_is_known_to_the_agent_alone() -> None:
    assert terms(minPcie={"generation": 3, "width": 16}) == [
        {"strata.ai/gpu-product": CARDS, "strata.ai/pcie-generation": ["2"], "strata.ai/pcie-width": ["15"]}
    ]


@pytest.mark.parametrize("hardware", [{}, {"minVramGiB": 24}, {"minPcie": {"width": 8}}])
def test_what_fits_by_its_inventory_may_be_scheduled_by_its_labels(hardware: dict[str, Any]) -> None:
    """The two readings of one spec agree on a node whose agent writes the labels that it should."""
    labels = {
        "strata.ai/gpu-product": "NVIDIA-GeForce-RTX-4090",
        "strata.ai/vram-gib": "24",
        "strata.ai/pcie-generation": "4",
        "strata.ai/pcie-width": "16",
    }
    own = terms(**hardware)[0]
    assert candidates(model(hardware={**NVIDIA, **hardware}).hardware, [StrataNode.parse(node_object())])
    for label, values in own.items():
        assert labels[label] in values if "product" in label else int(labels[label]) > int(values[0])


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
