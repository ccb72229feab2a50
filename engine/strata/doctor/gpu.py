"""The driver and the cards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata.config import DeviceConfig
from strata.doctor.finding import Finding, fail, ok, warn
from strata.errors import HardwareError
from strata.plan.host import numa_node_of_pci, numa_nodes
from strata.plan.nvml import GpuFacts, Nvml, open_nvml
from strata.plan.units import format_bytes

MIN_DRIVER = 550  # the oldest branch that runs the CUDA 12.8 libraries which torch's wheels bring
MIN_CAPABILITY = (8, 0)  # the first cards that compute in bf16
SHARE = DeviceConfig().gpu_memory_utilization  # of a card's memory, which `strata serve` fills unless told otherwise


def check_gpus(
    root: Path, library: Any | None, *, cpus: frozenset[int] | None = None
) -> tuple[list[Finding], list[GpuFacts]]:
    """Findings, and the facts of every card that answers. ``library``: see ``strata.plan.nvml``. ``cpus``: those that
    this process may use; None asks the kernel."""
    try:
        with open_nvml(library) as nvml:
            facts, findings = [], list(_driver(nvml))
            for index in range(nvml.num_gpus):
                try:
                    facts.append(nvml.facts(index))
                except HardwareError as error:
                    advice = "see dmesg for an Xid; reset or reboot the machine, check power cables and risers"
                    findings.append(fail(f"gpu {index}", str(error), advice))
            near = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus
            return [*findings, *(finding for gpu in facts for finding in _card(gpu, root, near))], facts
    except HardwareError as error:
        return [
            warn(
                "gpu",
                f"{error}: models run on the CPU, at the speed of the RAM",
                "with a card: install its driver (and nvidia-ml-py); in a container, give it the card (docker "
                "--gpus all, or nvidia.com/gpu in the pod's limits)",
            )
        ], []


def _driver(nvml: Nvml) -> Iterator[Finding]:
    version, cuda = nvml.driver_version, ".".join(map(str, nvml.cuda_version))
    branch = version.partition(".")[0]
    if branch.isdigit() and int(branch) < MIN_DRIVER:
        yield fail(
            "driver", f"{version} (CUDA {cuda})", f"install {MIN_DRIVER} or newer: torch's CUDA libraries need it"
        )
    else:
        yield ok("driver", f"{version} (CUDA {cuda})")
    if not nvml.num_gpus:
        yield warn(
            "gpu", "the driver sees no card: models run on the CPU", "check lspci, and in a container that it has one"
        )


def _card(gpu: GpuFacts, root: Path, cpus: frozenset[int]) -> Iterator[Finding]:
    topic = f"gpu {gpu.index}"
    major, minor = gpu.compute_capability
    if gpu.compute_capability < MIN_CAPABILITY:
        advice = "use a card of 8.0 or newer (RTX 30 series, A100 and later): this one has no bf16 arithmetic"
        yield warn(topic, f"{gpu.name}, compute capability {major}.{minor}", advice)
    else:
        yield ok(topic, f"{gpu.name}, compute capability {major}.{minor}")
    yield _memory(gpu, f"{topic} VRAM")
    yield _pcie(gpu, f"{topic} PCIe")
    yield _power(gpu, f"{topic} power")
    nodes = numa_nodes(root)
    number = numa_node_of_pci(gpu.bus_id, root)
    near = next((node for node in nodes if node.number == number), None)
    if len(nodes) > 1 and near is not None:
        if cpus <= near.cpus:
            yield ok(f"{topic} NUMA", f"node {number}, as this process's CPUs")
        else:
            yield warn(
                f"{topic} NUMA",
                f"node {number}; this process may also run on CPUs of others, from where copies take twice as long",
                f"start with: numactl --cpunodebind={number} --preferred={number} strata serve ...",
            )


def _memory(gpu: GpuFacts, topic: str) -> Finding:
    usable = min(int(gpu.vram_bytes * SHARE), gpu.vram_free_bytes)
    message = (
        f"{format_bytes(gpu.vram_bytes)}, {format_bytes(gpu.vram_free_bytes)} free; "
        f"{format_bytes(usable)} usable at --gpu-memory-utilization {SHARE}"
    )
    if usable < int(gpu.vram_bytes * SHARE):
        return warn(topic, message, "others use the card: nvidia-smi names them; end them, or plan with what is free")
    return ok(topic, message)


def _pcie(gpu: GpuFacts, topic: str) -> Finding:
    generation, width = gpu.max_pcie_generation, gpu.max_pcie_width
    if not generation or not width or not gpu.pcie_width:
        return ok(topic, "not told by this card")
    message = (
        f"now {gpu.pcie_generation}.0 x{gpu.pcie_width}, at most {generation}.0 x{width}"
        f"{' (a card at rest lowers the generation)' if gpu.pcie_generation != generation else ''}"
    )
    if gpu.pcie_width < width:
        advice = "seat the card anew, use a slot with all lanes, look at the BIOS's lane splitting and at risers"
        return warn(topic, message, advice)
    return ok(topic, message)


def _power(gpu: GpuFacts, topic: str) -> Finding:
    limit, default = gpu.power_limit_watts, gpu.default_power_limit_watts
    if limit is None or default is None:
        return ok(topic, "no limit is told by this card")
    message = f"limit {limit:.0f} W, default {default:.0f} W"
    if gpu.power_limit_range_watts is not None:
        low, high = gpu.power_limit_range_watts
        message += f", may be {low:.0f} to {high:.0f} W"
    if limit < default:
        return warn(topic, message, f"below the default, prompts take longer; to undo it: nvidia-smi -pl {default:.0f}")
    return ok(topic, message)
