"""What the gateway has to know of a StrataModel: where it is, and under which name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.container import SecretKey
from strata_operator.api.fields import Fields
from strata_operator.api.names import child_name


@dataclass(frozen=True, slots=True, order=True)
class Backend:
    """One StrataModel. In order: the oldest first, of those of the same second by their names."""

    created: str  # as the API server writes it, in UTC
    namespace: str
    name: str
    served_name: str
    port: int
    api_keys: SecretKey | None  # None: requests need no key

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Backend:
        """Of an object as the API server returns it. Nothing but these fields is looked at: what runs goes on serving
        where the operator refuses a new spec. Raises InvalidSpecError for a field of a wrong type."""
        metadata, spec = obj["metadata"], Fields(obj.get("spec") or {}, "spec")
        service = spec.table("service")
        return cls(
            created=metadata["creationTimestamp"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            served_name=spec.table("model").get("servedName", str) or metadata["name"],
            port=service.get("port", int) or 8000,
            api_keys=SecretKey.parse(service.table_or_none("apiKeysSecretRef"), key="keys"),
        )

    @property
    def long_name(self) -> str:
        """The name that no model of another namespace can have."""
        return f"{self.namespace}/{self.served_name}"

    @property
    def url(self) -> str:
        """The OpenAI base URL inside the cluster."""
        return f"http://{child_name(self.name)}.{self.namespace}.svc:{self.port}/v1"
