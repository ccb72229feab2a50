from __future__ import annotations

from strata_operator.placement import affinity, needs, tolerations
from tests.operator.samples import CPU, NVIDIA, model


def test_a_gpu_model_requires_one_of_the_named_cards() -> None:
    hardware = model(hardware={**NVIDIA, "gpus": ["RTX3090Ti", "RTX4090D"]}).hardware
    terms = affinity(hardware)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {
            "matchExpressions": [
                {
                    "key": "nvidia.com/gpu.product",
                    "operator": "In",
                    "values": ["NVIDIA-GeForce-RTX-3090-Ti", "NVIDIA-GeForce-RTX-4090-D"],
                }
            ]
        }
    ]


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


def test_needs_names_the_cards() -> None:
    assert "NVIDIA-GeForce-RTX-3090 or NVIDIA-GeForce-RTX-4090" in needs(model(hardware=NVIDIA).hardware)
    assert "gpu" not in needs(model(hardware=CPU).hardware)
