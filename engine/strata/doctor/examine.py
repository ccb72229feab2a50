"""All checks, in the order in which a problem would be met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strata.doctor.finding import Finding, Level, fail
from strata.doctor.gpu import check_gpus
from strata.doctor.host import check_host
from strata.doctor.model import check_model
from strata.doctor.software import check_software
from strata.errors import OptionError
from strata.plan.hardware import available_memory
from strata.plan.host import ROOT
from strata.plan.memory import PROCESS_BYTES, DeviceMemory
from strata.store.directories import default_cache_dir


def examine(
    model: str | None = None, dtype: str = "int4", *, root: Path = ROOT, library: Any | None = None
) -> list[Finding]:
    """The machine, and the model where one is named.

    ``root``: where procfs, sysfs and /dev are looked for. ``library``: stands in for pynvml (``plan.fake_nvml``).
    """
    gpus, facts = check_gpus(root, library)
    cache = _cache()
    software = list(check_software(has_gpu=bool(facts)))
    findings = [*gpus, *check_host(root, num_gpus=len(facts), cache=cache), *software]
    if model is None:
        return findings
    if any(finding.level is Level.FAIL for finding in software):
        findings.append(fail("model", "not looked at, for want of packages", "install them first"))
    elif cache is None:
        findings.append(fail("model", "not looked at, for want of a cache", "see to that first"))
    else:
        available = max(0, available_memory(root) - PROCESS_BYTES)
        memory = DeviceMemory("cpu", available, available)
        if facts:
            memory = DeviceMemory("cuda", facts[0].vram_bytes, facts[0].vram_free_bytes)
        findings += check_model(model, dtype, memory, cache)
    return findings


def _cache() -> Path | None:
    """None where the home directory is not known."""
    try:
        return default_cache_dir()
    except OptionError:
        return None
