"""The chart's gateway, one URL for all models, and clients' keys for it, as docs/gateway.md says."""

from __future__ import annotations

import base64
import json
from typing import Any

import openai

from images.catalogue import GATEWAY
from tests.e2e.models import OPERATOR_NAMESPACE
from tests.e2e.target import Target

NAME = "strata-gateway"
HERE = ("-n", OPERATOR_NAMESPACE)


def values(image: str) -> dict[str, Any]:
    """The chart's, for the reference of its image."""
    registry, _, tag = image.partition(f"/{GATEWAY.name}:")
    return {"gateway.enabled": True, "gateway.image.registry": registry, "gateway.image.tag": tag}


def make_key(target: Target, name: str, key: str, **entries: str) -> str:
    """A Secret that lets in whoever has ``key``, which is returned."""
    literals = [f"--from-literal={entry}={value}" for entry, value in {"key": key, **entries}.items()]
    target.run("kubectl", "create", "secret", "generic", name, *HERE, *literals)
    target.run("kubectl", "label", "secret", name, *HERE, "strata.ai/gateway-key=")
    return key


def find_key(target: Target, name: str) -> str | None:
    """That ``make_key`` made before; None where there is none."""
    shown = target.run("kubectl", "get", "secret", name, *HERE, "--ignore-not-found", "-o", "json")
    return base64.b64decode(json.loads(shown)["data"]["key"]).decode() if shown else None


def is_known(client: openai.OpenAI) -> bool:
    """Whether the gateway takes the client's key; it has a second to hear of a new one."""
    try:
        client.models.list()
    except openai.AuthenticationError:
        return False
    return True
