"""Where a model answers inside the cluster, under which name, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.container import SecretKey
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields
from strata_operator.api.names import child_name

SERVICE_PORT = 8000  # unless spec.service.port says another


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A model's Service. ``namespace`` and ``name`` are the model's."""

    namespace: str
    name: str
    served_name: str  # what requests call the model
    port: int
    api_keys: SecretKey | None  # None: requests need no key

    @classmethod
    def parse(cls, metadata: Mapping[str, Any], model: Fields, service: Fields) -> Endpoint:
        """``model`` and ``service``: those tables of the spec. Raises InvalidSpecError naming the field."""
        port = service.get("port", int, SERVICE_PORT)
        if port is None or port < 1:
            raise InvalidSpecError(f"spec.service.port is {port}; it must be at least 1")
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            served_name=model.get("servedName", str) or metadata["name"],
            port=port,
            api_keys=SecretKey.parse(service.table_or_none("apiKeysSecretRef"), key="keys"),
        )

    @property
    def url(self) -> str:
        """OpenAI's base URL inside the cluster."""
        return f"http://{child_name(self.name)}.{self.namespace}.svc:{self.port}/v1"
