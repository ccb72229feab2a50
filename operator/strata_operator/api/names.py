"""The names that a model's children, its pods and their watches have to agree upon."""

from __future__ import annotations

import hashlib
import re

FIELD_MANAGER = "strata-operator"
EXPIRY_MANAGER = f"{FIELD_MANAGER}-expiry"  # of the fields that let an old Job end
MODEL_LABEL = "strata.ai/model"  # on every child and pod; its value is the children's name
HASH_ANNOTATION = "strata.ai/hash"  # on every child: of all that was applied
REVISION_ANNOTATION = "strata.ai/revision"  # on every pod: of the pod template
TUNING_FINALIZER = "strata.ai/node-tuning"  # on models that wish for something of their nodes, until it is undone
ROLE_LABEL = "strata.ai/role"  # on pods that do not serve: what they are for
NODE_ANNOTATION = "strata.ai/node"  # on such pods: the node that they are meant for
GATEWAY_KEY_LABEL = "strata.ai/gateway-key"  # on Secrets with keys of the gateway's clients, of any value
GPU_RESOURCE = "nvidia.com/gpu"
ENGINE = "engine"  # the container's name
CACHE = "cache"  # the name of the volume that the node keeps

_NAME_LIMIT = 52  # of 63: a Deployment's pods get a suffix of up to 11 characters


def wish_manager(namespace: str, name: str) -> str:
    """The field manager of a model's wish on StrataNodes: each has its own, so that one leaves the others alone."""
    return f"{FIELD_MANAGER}-{hashlib.sha256(f'{namespace}/{name}'.encode()).hexdigest()[:16]}"


def child_name(model_name: str) -> str:
    """The name of a model's children: its own where a Service may bear it, else a readable one with a digest.

    Only a digest of the whole name keeps ``a.b`` and ``a-b``, or two long names with one beginning, apart.
    """
    if len(model_name) <= _NAME_LIMIT and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", model_name):
        return model_name
    readable = re.sub(r"[^a-z0-9]+", "-", model_name)
    readable = readable if readable[0].isalpha() else f"m-{readable}"
    return f"{readable[: _NAME_LIMIT - 9].rstrip('-')}-{hashlib.sha256(model_name.encode()).hexdigest()[:8]}"
