"""The ConfigMap: the engine's environment."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.render.meta import manifest

CACHE_MOUNT = "/var/lib/strata"


def config(model: StrataModel) -> dict[str, Any]:
    """Environment variables of the engine's container; a change of them is a new revision of the pods."""
    environment = {
        "STRATA_CACHE_DIR": f"{CACHE_MOUNT}/stores",  # converted once, kept on the node across restarts
        "STRATA_TERMINATION_LOG": "/dev/termination-log",  # the engine's last words, which the conditions quote
        "TRITON_CACHE_DIR": f"{CACHE_MOUNT}/triton",  # compiled kernels, kept for the same reason
        "OMP_NUM_THREADS": str(model.hardware.cpu),  # for converting, too
        "HOME": "/tmp",  # the one place that is writable in a read-only image
    }
    if model.cache_keep_days is not None:
        environment["STRATA_CACHE_KEEP_DAYS"] = str(model.cache_keep_days)
    if model.source.hub is not None:
        environment["HF_HOME"] = f"{CACHE_MOUNT}/hub"  # downloads go on where they were, and are shared by models
    if model.hardware.accelerator == "cpu":
        # Where the NVIDIA runtime is a node's default, it would otherwise show its cards to a pod that asked for none.
        environment["NVIDIA_VISIBLE_DEVICES"] = "void"
    return manifest(model, "v1", "ConfigMap", data=environment)
