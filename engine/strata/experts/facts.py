"""What the times of a trial depend on, as far as that can be known."""

from __future__ import annotations

import torch

from strata.experts.cpu import CpuExperts
from strata.experts.saved import Facts
from strata.plan.host import cpu_name, driver_version
from strata.store.layout import ExpertLayout


def facts_of(layout: ExpertLayout, top_k: int, cpu: CpuExperts, hugepages: str, device: torch.device) -> Facts:
    """The number of slots is none of them: it bounds what is tried, and does not change what it takes."""
    gate = layout.weights["gate_proj.weight"]
    intermediate, hidden = gate.shape
    return {
        "card": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "driver": driver_version(),
        "cpu": cpu_name(),
        "cpu_threads": cpu.num_threads,
        "hugepages": hugepages,
        "hidden": hidden,
        "intermediate": intermediate,
        "format": gate.format,
        "num_experts": layout.num_experts,
        "top_k": top_k,
    }
