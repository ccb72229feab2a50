"""``spec.route``: how requests from outside of the cluster reach a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api import wire
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields

KINDS = ("HTTPRoute", "Ingress")
FAILURE_MODES = ("FailClose", "FailOpen")
PICKER_PORT = 9002
# Fields of one kind alone.
_OF_KIND = {
    "HTTPRoute": ("parentRefs", "headers", "timeoutSeconds", "endpointPickerRef"),
    "Ingress": ("ingressClassName", "tlsSecretName"),
}


@dataclass(frozen=True, slots=True)
class Parent:
    """A Gateway, or one listener of it. Without a namespace: of the route's own."""

    name: str
    namespace: str | None = None
    section_name: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Parent:
        return cls(
            name=fields.need("name", str),
            namespace=fields.get("namespace", str),
            section_name=fields.get("sectionName", str),
            port=fields.between(1, 65535, "port"),
        )

    def dump(self) -> dict[str, Any]:
        """As a parentRef of a route."""
        return dict(wire.dump(self))

    def __str__(self) -> str:
        where = "/".join(filter(None, (self.namespace, self.name)))
        return f"Gateway {where}" + (f" (listener {self.section_name})" if self.section_name else "")


@dataclass(frozen=True, slots=True)
class Picker:
    """The Service of an endpoint picker, which chooses a pod for each request of an InferencePool."""

    name: str
    port: int
    failure_mode: str | None  # what becomes of requests while it does not answer; None: what the CRD says

    @classmethod
    def parse(cls, fields: Fields | None) -> Picker | None:
        if fields is None:
            return None
        return cls(
            name=fields.need("name", str),
            port=fields.between(1, 65535, "port") or PICKER_PORT,
            failure_mode=fields.choice_or_none("failureMode", FAILURE_MODES),
        )


@dataclass(frozen=True, slots=True)
class Route:
    """``timeout_seconds`` of 0: a request may take as long as it takes."""

    kind: str
    hostnames: tuple[str, ...]
    path: str
    annotations: Mapping[str, str]
    parents: tuple[Parent, ...]
    headers: Mapping[str, str]  # that a request must have
    timeout_seconds: int
    picker: Picker | None
    ingress_class: str | None
    tls_secret: str | None

    @property
    def wanted(self) -> tuple[str, ...]:
        """Kinds of the objects that make it, in the order in which they are applied."""
        return ("InferencePool", self.kind) if self.picker is not None else (self.kind,)

    @classmethod
    def parse(cls, fields: Fields | None) -> Route | None:
        """Raises InvalidSpecError for a field that belongs to another kind."""
        if fields is None:
            return None
        kind = fields.choice("kind", KINDS, KINDS[0])
        read = cls(
            kind=kind,
            hostnames=fields.texts("hostnames"),
            path=_path(fields.get("path", str)),
            annotations=fields.texts_by_name("annotations"),
            parents=tuple(Parent.parse(one) for one in fields.tables("parentRefs")),
            headers=fields.texts_by_name("headers"),
            timeout_seconds=fields.between(0, 86400, "timeoutSeconds") or 0,
            picker=Picker.parse(fields.table_or_none("endpointPickerRef")),
            ingress_class=fields.get("ingressClassName", str),
            tls_secret=fields.get("tlsSecretName", str),
        )
        for other in KINDS:
            given = [name for name in _OF_KIND[other] if fields.has(name)]
            if given and other != kind:
                raise InvalidSpecError(
                    f"spec.route.{given[0]} belongs to kind {other}, and the kind is {kind}; remove it, or set "
                    f"spec.route.kind: {other}"
                )
        return read


@dataclass(frozen=True, slots=True)
class RouteDefaults:
    """What the operator's options say for models that leave it out."""

    parent: Parent | None = None
    domain: str = ""  # under which a model is NAME.NAMESPACE; "" for none
    ingress_class: str | None = None


def _path(path: str | None) -> str:
    """A prefix, without a slash at its end unless it is nothing else."""
    if path is None:
        return "/"
    if not path.startswith("/") or "//" in path:
        raise InvalidSpecError(
            f"spec.route.path is {path!r}; it must begin with a slash, and have no two of them in a row"
        )
    return path.rstrip("/") or "/"
