"""The engine's command line: ``strata serve`` with the flags that the spec sets."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import fields

from strata_operator.api.model import StrataModel
from strata_operator.api.source import Source

PORT = 8000
MODEL_MOUNT = "/model"
KEYS_MOUNT = "/etc/strata/api-keys"
_NO_FLAGS = ("prefix_cache", "extra_args")  # of ``Engine``: a switch, and flags themselves


def arguments(model: StrataModel, *, grace_seconds: int) -> list[str]:
    """Arguments of the image's entrypoint, ``strata``; flags that the user left out are left to the engine.

    ``grace_seconds``: what requests under way get when the pod ends.
    """
    return [
        "serve",
        source_argument(model.source),
        *(f"{flag}={value}" for flag, value in _flags(model, grace_seconds) if value is not None),
        *_switches(model),
        *model.engine.extra_args,
    ]


def source_argument(source: Source) -> str:
    """What the engine is told to serve: a name, or a path in its container."""
    if source.builtin is not None or source.url is not None:
        return source.text
    if source.hub is not None:
        return source.hub
    if source.host_path is not None:
        # The last part of the path stays: the engine tells a GGUF file by its name.
        return posixpath.join(MODEL_MOUNT, posixpath.basename(source.host_path))
    return posixpath.join(MODEL_MOUNT, source.path_in_claim).rstrip("/")


def _flags(model: StrataModel, grace_seconds: int) -> Iterator[tuple[str, object]]:
    yield "--revision", model.revision
    yield "--dtype", model.format
    yield "--device", "cuda" if model.hardware.accelerator == "nvidia" else "cpu"
    yield "--host", "0.0.0.0"  # noqa: S104  the pod's own network, behind a Service
    yield "--port", PORT
    yield "--threads", model.hardware.cpu  # a kubelet that sets no quota would let the engine count the node's
    yield "--grace-seconds", grace_seconds
    yield "--served-model-name", model.endpoint.served_name
    yield "--api-key-file", posixpath.join(KEYS_MOUNT, model.endpoint.api_keys.key) if model.endpoint.api_keys else None
    yield "--hugepages", model.hardware.hugepages if model.hardware.accelerator == "nvidia" else None
    for field in fields(model.engine):
        if field.name not in _NO_FLAGS:
            yield f"--{field.name.replace('_', '-')}", getattr(model.engine, field.name)


def _switches(model: StrataModel) -> list[str]:
    prefix_cache = model.engine.prefix_cache
    return [] if prefix_cache is None else ["--prefix-cache" if prefix_cache else "--no-prefix-cache"]
