"""What the gateway has to know of a StrataModel: where it is, and under which name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.endpoint import Endpoint
from strata_operator.api.fields import Fields


@dataclass(frozen=True, slots=True, order=True)
class Backend:
    """One StrataModel. In order: the oldest first, of those of the same second by their names."""

    created: str  # as the API server writes it, in UTC
    endpoint: Endpoint

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Backend:
        """Of an object as the API server returns it. Of the spec nothing else is looked at: what runs goes on serving
        where the operator refuses a new one. Raises InvalidSpecError for a field of a wrong type."""
        metadata, spec = obj["metadata"], Fields(obj.get("spec") or {}, "spec")
        endpoint = Endpoint.parse(metadata, spec.table("model"), spec.table("service"))
        return cls(metadata["creationTimestamp"], endpoint)

    @property
    def long_name(self) -> str:
        """The name that no model of another namespace can have."""
        return f"{self.endpoint.namespace}/{self.endpoint.served_name}"
