"""All checks, in the order in which a problem would be met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strata.doctor.finding import Finding
from strata.doctor.gpu import SHARE, check_gpus
from strata.doctor.host import check_host
from strata.doctor.model import check_model
from strata.doctor.software import check_software
from strata.plan.hardware import available_memory
from strata.plan.host import ROOT
from strata.store.locate import default_cache_dir


def examine(
    model: str | None = None, dtype: str = "int4", *, root: Path = ROOT, library: Any | None = None
) -> list[Finding]:
    """The machine, and the model where one is named.

    ``root``: where procfs, sysfs and /dev are looked for. ``library``: stands in for pynvml (``plan.fake_nvml``).
    """
    gpus, facts = check_gpus(root, library)
    cache = default_cache_dir()
    findings = [*gpus, *check_host(root, num_gpus=len(facts), cache=cache), *check_software(has_gpu=bool(facts))]
    if model is not None:
        # `fit` takes its share of the whole; here it is what others have left of the first card.
        vram = min(facts[0].vram_bytes, int(facts[0].vram_free_bytes / SHARE)) if facts else None
        ram = available_memory(root)
        findings += check_model(model, dtype, vram_bytes=vram, ram_bytes=ram, cache=cache)
    return findings
