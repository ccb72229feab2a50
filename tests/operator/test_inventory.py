from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.node import StrataNode
from strata_operator.inventory import candidates, describe
from tests.operator.samples import NVIDIA, gpu, model, node_object


def nodes(*objects: dict[str, Any]) -> list[StrataNode]:
    return [StrataNode.parse(obj) for obj in objects]


ILL: dict[str, Any] = {"conditions": [{"type": "Healthy", "status": "False", "reason": "GpuLost", "message": "lost"}]}
NODES = nodes(
    node_object("b-3090", gpus=[gpu("NVIDIA-GeForce-RTX-3090", pcie=(3, 16))]),
    node_object("a-4090"),
    node_object("c-48g", gpus=[gpu(vram_gib=48)]),
    node_object("d-narrow", gpus=[gpu(pcie=(4, 4))]),
    node_object("e-ill", **ILL),
    node_object("f-other", gpus=[gpu("NVIDIA-GeForce-RTX-4080")]),
    node_object("g-shared", gpus=[gpu("NVIDIA-GeForce-RTX-4090-SHARED")]),
    node_object("h-none", gpus=[]),
    node_object("i-mixed", gpus=[gpu(vram_gib=48), gpu("NVIDIA-GeForce-RTX-4080", uuid="GPU-2")]),
)


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        pytest.param({}, ["a-4090", "b-3090", "c-48g", "d-narrow"], id="the named cards, and no ill node"),
        pytest.param({"gpus": ["RTX3090"]}, ["b-3090"], id="one card"),
        pytest.param({"minVramGiB": 24}, ["a-4090", "b-3090", "c-48g", "d-narrow"], id="24 GiB as NVML counts them"),
        pytest.param({"minVramGiB": 48}, ["c-48g"], id="a card of the same name with more memory"),
        pytest.param({"minPcie": {"generation": 4}}, ["a-4090", "c-48g", "d-narrow"], id="generation"),
        pytest.param({"minPcie": {"width": 8}}, ["a-4090", "b-3090", "c-48g"], id="lanes"),
    ],
)
def test_which_nodes_will_do(hardware: dict[str, Any], expected: list[str]) -> None:
    found = candidates(model(hardware={**NVIDIA, **hardware}).hardware, NODES)
    assert [one.node.name for one in found] == expected


def test_of_two_cards_the_smaller_one_counts() -> None:
    (found,) = candidates(
        model(hardware=NVIDIA).hardware, nodes(node_object(gpus=[gpu(vram_gib=48), gpu(uuid="GPU-2")]))
    )
    assert found.gpu.uuid == "GPU-2"


def test_what_pods_may_have_of_the_memory_counts() -> None:
    host = {"cpu": "x", "cores": 16, "cpuFlags": [], "memoryBytes": 64 << 30, "podsMemoryBytes": 60 << 30}
    (found,) = candidates(model(hardware=NVIDIA).hardware, nodes(node_object(host=host)))
    assert found.host_bytes == 60 << 30


def test_what_there_is_instead_is_told() -> None:
    told = describe(NODES[1:], model(hardware={**NVIDIA, "gpus": ["RTX4090"], "minVramGiB": 40}).hardware)
    assert told.split("; ") == [
        "c-48g has NVIDIA-GeForce-RTX-4090 (fit)",
        "a-4090 has NVIDIA-GeForce-RTX-4090 (24 GiB of VRAM)",
        "d-narrow has NVIDIA-GeForce-RTX-4090 (24 GiB of VRAM)",
        "e-ill has NVIDIA-GeForce-RTX-4090 (24 GiB of VRAM), not healthy",
        "f-other has NVIDIA-GeForce-RTX-4080 (another card)",
        "g-shared has NVIDIA-GeForce-RTX-4090-SHARED (another card)",
        "i-mixed has NVIDIA-GeForce-RTX-4080 (another card), NVIDIA-GeForce-RTX-4090 (fit), of which a pod may get any",
        "h-none has no card",
    ]
    kinds = [gpu(f"NVIDIA-GeForce-RTX-{name}", uuid=name) for name in ("3090", "3090-Ti", "4090-D")]
    told = describe(nodes(node_object(gpus=kinds)), model(hardware={**NVIDIA, "gpus": ["RTX3090"]}).hardware)
    assert told.endswith("of which a pod may get any, more kinds than its label can name")
    many = describe(NODES * 3, model(hardware=NVIDIA).hardware, limit=2)
    assert many.endswith("; and 25 more")
