"""Models and clients' keys as the API server returns them."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from tests.operator.samples import model_object

KEY = "0123456789abcdef"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def secret(name: str, namespace: str = "gateway", **entries: str) -> dict[str, Any]:
    """Entries are given as text; an underscore in a name is a hyphen."""
    data = {entry.replace("_", "-"): base64.b64encode(text.encode()).decode() for entry, text in entries.items()}
    return {"kind": "Secret", "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"}, "data": data}


def model(name: str, namespace: str = "a", created: int = 0, **spec: Any) -> dict[str, Any]:
    """``created``: the minute; ``served``, if it is given, the served name."""
    served = {"servedName": spec.pop("served")} if "served" in spec else {}
    made = model_object(name, model={"source": "builtin://smollm2-135m", **served}, **spec)
    made["metadata"] |= {"namespace": namespace, "creationTimestamp": f"2026-01-01T00:{created:02}:00Z"}
    return made
