"""StrataModel, group strata.ai, version v1alpha1: the custom resource as frozen dataclasses."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields

GROUP = "strata.ai"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "StrataModel"
PLURAL = "stratamodels"

FORMATS = ("int4", "int8", "bf16")
ACCELERATORS = ("nvidia", "cpu")
GPUS = ("RTX3090", "RTX3090Ti", "RTX4090", "RTX4090D")
DEFAULT_GPUS = ("RTX3090", "RTX4090")
BLOCK_SIZES = (16, 32)

_PATH = r"(?:/[A-Za-z0-9._@+=,:-]+)+"
_SOURCES = re.compile(
    rf"builtin://(?P<name>[a-z0-9][a-z0-9._-]*)|hostpath://(?P<host>{_PATH})"
    rf"|pvc://(?P<claim>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?P<inside>{_PATH})?"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the checkpoint comes from. Exactly one of ``builtin``, ``host_path`` and ``claim`` is set."""

    text: str  # as the user wrote it
    builtin: str | None = None  # a model that the engine's image knows by name
    host_path: str | None = None  # an absolute path on the node
    claim: str | None = None  # a PersistentVolumeClaim of the model's namespace
    path_in_claim: str = ""  # relative to the volume's root; empty is the root

    @classmethod
    def parse(cls, text: str) -> Source:
        """Raises InvalidSpecError for another scheme, a relative path, or one with ``.`` or ``..`` in it."""
        match = _SOURCES.fullmatch(text)
        if match is None or re.search(r"/\.\.?(/|$)", text):
            raise InvalidSpecError(
                f"spec.model.source is {text!r}; allowed are builtin://NAME, hostpath:///ABSOLUTE/PATH and "
                "pvc://CLAIM or pvc://CLAIM/PATH, without '.' or '..' in a path"
            )
        return cls(
            text=text,
            builtin=match["name"],
            host_path=match["host"],
            claim=match["claim"],
            path_in_claim=(match["inside"] or "").lstrip("/"),
        )


@dataclass(frozen=True, slots=True)
class Engine:
    """Engine settings by their flags' names; None leaves the engine's own default."""

    max_model_len: int | None = None  # tokens, prompt and output of one request
    max_num_seqs: int | None = None  # sequences decoded together
    max_num_batched_tokens: int | None = None  # tokens of one engine step
    block_size: int | None = None  # tokens of one KV block
    num_kv_tokens: int | None = None  # tokens that the KV cache holds
    gpu_memory_utilization: str | None = None  # decimal share of the GPU's memory, as text: floats do not round-trip
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one replica gets. Requests equal limits, so that the kubelet can give whole CPUs of one NUMA node."""

    accelerator: str  # nvidia | cpu; never one in place of the other
    cpu: int  # whole CPUs
    memory: str  # a Kubernetes quantity
    gpus: tuple[str, ...] = ()  # any of these; empty for cpu
    count: int = 0  # GPUs of one replica; 0 for cpu


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod toleration, as Kubernetes has it."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What a user adds to the placement that follows from the hardware."""

    node_selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...] = ()
    priority_class_name: str | None = None


@dataclass(frozen=True, slots=True)
class StrataModel:
    """One served model. ``name``, ``namespace``, ``uid`` and ``generation`` are its metadata."""

    name: str
    namespace: str
    uid: str
    generation: int
    source: Source
    served_name: str
    format: str
    engine: Engine
    hardware: Hardware
    cache_host_path: str
    replicas: int
    port: int
    image: str | None
    scheduling: Scheduling

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> StrataModel:
        """Read the object as the API server returns it.

        Raises InvalidSpecError naming the field: a value of the wrong type or out of range, or a field that this
        operator does not know.
        """
        metadata = obj["metadata"]
        spec = Fields(obj.get("spec") or {}, "spec")
        model, quantization = spec.table("model"), spec.table("quantization")
        cache, service = spec.table("cache"), spec.table("service")
        parsed = cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            source=Source.parse(model.need("source", str)),
            served_name=model.get("servedName", str) or metadata["name"],
            format=quantization.choice("format", FORMATS, "int4"),
            engine=_engine(spec.table("engine")),
            hardware=_hardware(spec.table("hardware")),
            cache_host_path=_cache_path(cache.get("hostPath", str) or "/var/lib/strata"),
            replicas=_at_least(0, spec.get("replicas", int, 1), "spec.replicas"),
            port=_at_least(1, service.get("port", int, 8000), "spec.service.port"),
            image=spec.get("image", str),
            scheduling=_scheduling(spec.table("scheduling")),
        )
        spec.close()
        return parsed


def _at_least(least: int, value: int | None, path: str) -> int:
    if value is None or value < least:
        raise InvalidSpecError(f"{path} is {value}; it must be at least {least}")
    return value


def _cache_path(path: str) -> str:
    if not re.fullmatch(_PATH, path) or posixpath.normpath(path) != path:
        raise InvalidSpecError(
            f"spec.cache.hostPath is {path!r}; an absolute path below / without '.' or '..' is needed"
        )
    return path


def _engine(fields: Fields) -> Engine:
    block_size = fields.get("blockSize", int)
    if block_size is not None and block_size not in BLOCK_SIZES:
        raise InvalidSpecError(f"spec.engine.blockSize is {block_size}; allowed are 16 and 32")
    return Engine(
        max_model_len=fields.get("maxModelLen", int),
        max_num_seqs=fields.get("maxNumSeqs", int),
        max_num_batched_tokens=fields.get("maxNumBatchedTokens", int),
        block_size=block_size,
        num_kv_tokens=fields.get("numKvTokens", int),
        gpu_memory_utilization=fields.get("gpuMemoryUtilization", str),
        extra_args=fields.texts("extraArgs"),
    )


def _hardware(fields: Fields) -> Hardware:
    accelerator = fields.choice("accelerator", ACCELERATORS)
    gpus, count = fields.texts("gpus"), fields.get("count", int)
    unknown = [gpu for gpu in gpus if gpu not in GPUS]
    if unknown:
        raise InvalidSpecError(f"spec.hardware.gpus holds {unknown[0]!r}; allowed are {', '.join(GPUS)}")
    if accelerator == "cpu" and (gpus or count is not None):
        raise InvalidSpecError("spec.hardware.gpus and count belong to accelerator nvidia; remove them for cpu")
    if accelerator == "nvidia" and count not in (None, 1):
        raise InvalidSpecError(
            f"spec.hardware.count is {count}; one replica runs on 1 GPU: set 1, or raise spec.replicas"
        )
    return Hardware(
        accelerator=accelerator,
        cpu=_at_least(1, fields.need("cpu", int), "spec.hardware.cpu"),
        memory=fields.need("memory", str),
        gpus=(gpus or DEFAULT_GPUS) if accelerator == "nvidia" else (),
        count=1 if accelerator == "nvidia" else 0,
    )


def _scheduling(fields: Fields) -> Scheduling:
    tolerations = []
    for number, table in enumerate(fields.get("tolerations", list) or []):
        one = Fields(table, f"spec.scheduling.tolerations[{number}]")
        tolerations.append(
            Toleration(
                key=one.get("key", str),
                operator=one.get("operator", str),
                value=one.get("value", str),
                effect=one.get("effect", str),
                toleration_seconds=one.get("tolerationSeconds", int),
            )
        )
        one.close()
    return Scheduling(
        node_selector=dict(fields.get("nodeSelector", dict) or {}),
        tolerations=tuple(tolerations),
        priority_class_name=fields.get("priorityClassName", str),
    )
