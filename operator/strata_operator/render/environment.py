"""Environment variables of the engine's containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata_operator.api.model import TOKEN_VARIABLE, StrataModel

CACHE_MOUNT = "/var/lib/strata"


def environment(model: StrataModel, **given: str) -> list[Mapping[str, Any]]:
    """The operator's, with ``given`` over them, and the Hub's token; the user's own win."""
    ours: list[Mapping[str, Any]] = [
        {"name": name, "value": value} for name, value in (_settings(model) | given).items()
    ]
    if model.token is not None:
        secret = {"name": model.token.name, "key": model.token.key}
        ours.append({"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": secret}})
    taken = {one["name"] for one in model.env}
    return [*(one for one in ours if one["name"] not in taken), *model.env]


def _settings(model: StrataModel) -> dict[str, str]:
    made = {
        "STRATA_CACHE_DIR": f"{CACHE_MOUNT}/stores",  # converted once, kept on the node across restarts
        "STRATA_TERMINATION_LOG": "/dev/termination-log",  # the engine's last words, which the conditions quote
        "TRITON_CACHE_DIR": f"{CACHE_MOUNT}/triton",  # compiled kernels, kept for the same reason
        "OMP_NUM_THREADS": str(model.hardware.cpu),  # for converting, too
        "HOME": "/tmp",  # noqa: S108  an emptyDir, the one place that is writable in a read-only image
    }
    if model.cache_keep_days is not None:
        made["STRATA_CACHE_KEEP_DAYS"] = str(model.cache_keep_days)
    if model.source.hub is not None:
        made["HF_HOME"] = f"{CACHE_MOUNT}/hub"  # downloads go on where they were, and are shared by models
    if model.hardware.accelerator == "cpu":
        # Where the NVIDIA runtime is a node's default, it would otherwise show its cards to a pod that asked for none.
        made["NVIDIA_VISIBLE_DEVICES"] = "void"
    return made
