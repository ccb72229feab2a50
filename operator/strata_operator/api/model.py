"""StrataModel, group strata.ai, version v1alpha1: the custom resource as frozen dataclasses."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.container import PodTemplate, SecretKey, environment
from strata_operator.api.endpoint import Endpoint
from strata_operator.api.engine import Engine
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields
from strata_operator.api.hardware import Hardware
from strata_operator.api.power import Power
from strata_operator.api.route import Route
from strata_operator.api.scheduling import Scheduling
from strata_operator.api.source import PATH, Source

GROUP = "strata.ai"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "StrataModel"
PLURAL = "stratamodels"

FORMATS = ("int4", "int8", "bf16")
GROUP_SIZE = 32  # weights that share a scale, in every format that has scales
STRATEGIES = ("auto", "recreate", "rolling")
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105  its name


@dataclass(frozen=True, slots=True)
class StrataModel:
    """One served model. ``name``, ``namespace``, ``uid`` and ``generation`` are its metadata."""

    name: str
    namespace: str
    uid: str
    generation: int
    source: Source
    revision: str | None  # branch, tag or commit on the Hub
    token: SecretKey | None  # of the Hub
    format: str
    engine: Engine
    hardware: Hardware
    power: Power
    cache_host_path: str
    cache_keep_days: int | None  # of a converted model without use; None: for ever
    keep_warm: bool  # every node that will do gets the weights, whether a pod runs there or not
    replicas: int  # as asked for, whether suspended or not
    suspend: bool
    strategy: str  # of a roll-out
    endpoint: Endpoint
    route: Route | None  # from outside of the cluster
    image: str | None
    env: tuple[Mapping[str, Any], ...]
    scheduling: Scheduling
    pod_template: PodTemplate

    @property
    def wanted_replicas(self) -> int:
        """Pods that should run."""
        return 0 if self.suspend else self.replicas

    @property
    def notes(self) -> tuple[str, ...]:
        """What is accepted, and acts in part only."""
        if self.hardware.hugepages is None or self.hardware.accelerator == "nvidia":
            return ()
        return ("huge pages are reserved for the pods, and a model on a CPU does not use them",)

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> StrataModel:
        """Read the object as the API server returns it.

        Raises InvalidSpecError naming the field: a value of the wrong type or out of range, or a field that this
        operator does not know.
        """
        metadata = obj["metadata"]
        table = obj.get("spec") or {}
        if not isinstance(table, Mapping):
            raise InvalidSpecError(f"spec is {table!r}; it must be a table")
        spec = Fields(table, "spec")
        model, quantization, cache = spec.table("model"), spec.table("quantization"), spec.table("cache")
        quantization.choice("groupSize", (GROUP_SIZE,), GROUP_SIZE)
        parsed = cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            source=Source.parse(model.need("source", str)),
            revision=model.get("revision", str),
            token=SecretKey.parse(model.table_or_none("secretRef"), key="token"),
            format=quantization.choice("format", FORMATS, "int4"),
            engine=Engine.parse(spec.table("engine")),
            hardware=Hardware.parse(spec.table("hardware")),
            power=Power.parse(spec.table("power")),
            cache_host_path=_host_path(cache),
            cache_keep_days=cache.between(1, 3650, "keepDays"),
            keep_warm=bool(cache.flag("keepWarm")),
            replicas=_replicas(spec),
            suspend=bool(spec.flag("suspend")),
            strategy=spec.table("rollout").choice("strategy", STRATEGIES, "auto"),
            endpoint=Endpoint.parse(metadata, model, spec.table("service")),
            route=Route.parse(spec.table_or_none("route")),
            image=spec.get("image", str),
            env=environment(spec.tables("env")),
            scheduling=Scheduling.parse(spec.table("scheduling")),
            pod_template=PodTemplate.parse(spec.table("podTemplate")),
        )
        spec.close()
        parsed._check()
        return parsed

    def _check(self) -> None:
        """Raises InvalidSpecError for fields that do not go together."""
        self.power.check(self.hardware.accelerator)
        if self.keep_warm and self.hardware.accelerator != "nvidia":
            raise InvalidSpecError(
                "spec.cache.keepWarm belongs to hardware.accelerator nvidia: nodes are known by the agents that run "
                "where GPUs are; remove it"
            )
        if self.source.hub is None and (self.revision or self.token):
            field = "revision" if self.revision else "secretRef"
            raise InvalidSpecError(
                f"spec.model.{field} is for models on the Hub, hf://ORG/NAME; the source is {self.source.text!r}: "
                "remove it"
            )
        if self.token and any(one["name"] == TOKEN_VARIABLE for one in self.env):
            raise InvalidSpecError(f"spec.env holds {TOKEN_VARIABLE}, and spec.model.secretRef sets it; remove one")


def _replicas(spec: Fields) -> int:
    number = spec.get("replicas", int, 1)
    if number is None or number < 0:
        raise InvalidSpecError(f"spec.replicas is {number}; it must be at least 0")
    return number


def _host_path(fields: Fields) -> str:
    """The directory on the node."""
    path = fields.get("hostPath", str) or "/var/lib/strata"
    if not re.fullmatch(PATH, path) or posixpath.normpath(path) != path:
        raise InvalidSpecError(
            f"spec.cache.hostPath is {path!r}; an absolute path below / without '.' or '..' is needed"
        )
    return path
