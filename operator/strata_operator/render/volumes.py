"""What a model's pods mount: the node's cache, a /tmp, and where they are asked for checkpoint, keys and huge pages."""

from __future__ import annotations

from typing import Any

from strata_operator.api.model import StrataModel
from strata_operator.api.names import CACHE
from strata_operator.render.arguments import KEYS_MOUNT, MODEL_MOUNT, source_argument
from strata_operator.render.environment import CACHE_MOUNT

HUGEPAGES_MOUNT = "/dev/hugepages"


def volumes(model: StrataModel) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes, and the engine's mounts of them. What the engine only reads is mounted read-only."""
    made: list[dict[str, Any]] = [
        {"name": CACHE, "hostPath": {"path": model.cache_host_path, "type": "DirectoryOrCreate"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": CACHE, "mountPath": CACHE_MOUNT},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the pod's own
    ]

    def read_only(name: str, mount_path: str, volume: dict[str, Any]) -> None:
        made.append({"name": name, **volume})
        mounts.append({"name": name, "mountPath": mount_path, "readOnly": True})

    source = model.source
    if source.host_path is not None:
        # With a type that is checked, a path that is not there is an error; without, the runtime would create it.
        kind = "File" if source.host_path.endswith(".gguf") else "Directory"
        read_only("model", source_argument(source), {"hostPath": {"path": source.host_path, "type": kind}})
    elif source.claim is not None:
        claim = {"claimName": source.claim, "readOnly": True}
        read_only("model", MODEL_MOUNT, {"persistentVolumeClaim": claim})
    if model.endpoint.api_keys is not None:
        # A directory, not one file of it: keys that change reach a mounted directory, and the engine reads them again.
        items = [{"key": model.endpoint.api_keys.key, "path": model.endpoint.api_keys.key}]
        secret = {"secretName": model.endpoint.api_keys.name, "items": items, "defaultMode": 0o400}
        read_only("api-keys", KEYS_MOUNT, {"secret": secret})
    if model.hardware.hugepages is not None:
        made.append({"name": "hugepages", "emptyDir": {"medium": f"HugePages-{model.hardware.hugepages}"}})
        mounts.append({"name": "hugepages", "mountPath": HUGEPAGES_MOUNT})
    return made, mounts
