"""What a spec names and its namespace lacks, told by the kubelet or the scheduler; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from strata_operator.api.conditions import Trouble
from strata_operator.api.model import StrataModel

_KINDS = {"persistentvolumeclaim": "PersistentVolumeClaim", "secret": "Secret", "configmap": "ConfigMap"}
_OBJECT = re.compile(rf'\b({"|".join(_KINDS)}) "([^"]+)" not found')
_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) [^/ ]+/(\S+)")
_MOUNTED_KEY = re.compile(r'for volume "api-keys" : references non-existent secret key: (\S+)')


def explained(model: StrataModel, trouble: Trouble) -> Trouble | None:
    """The same with what to do; None where it is not of something missing.

    The operator has no right to read Secrets: it knows of them what the kubelet says.
    """
    found = _OBJECT.search(trouble.message)
    if found is not None:
        kind, name = _KINDS[found[1]], found[2]
        words = f'{kind} "{name}" not found in namespace {model.namespace}; create it'
    elif (missing := _key(model, trouble.message)) is not None:
        kind, name, key = missing
        words = f'{kind} "{name}" in namespace {model.namespace} has no key "{key}"; add it'
    else:
        return None
    fields = " and ".join(_fields(model, kind, name)) or "the spec"
    return Trouble(trouble.reason, f"{words}, or name another in {fields}")


def _key(model: StrataModel, message: str) -> tuple[str, str, str] | None:
    """Kind, name, and the key that it lacks."""
    found = _KEY.search(message)
    if found is not None:
        return found[2], found[3], found[1]
    mounted, keys = _MOUNTED_KEY.search(message), model.endpoint.api_keys
    return ("Secret", keys.name, mounted[1]) if mounted is not None and keys is not None else None


def _fields(model: StrataModel, kind: str, name: str) -> Iterator[str]:
    """Those of the spec that name the object; none where ``podTemplate`` does."""
    if (kind, name) == ("PersistentVolumeClaim", model.source.claim):
        yield "spec.model.source"
    secrets = {"spec.model.secretRef": model.token, "spec.service.apiKeysSecretRef": model.endpoint.api_keys}
    yield from (field for field, one in secrets.items() if kind == "Secret" and one is not None and one.name == name)
    reference = f"{kind[0].lower()}{kind[1:]}KeyRef"
    if any(one.get("valueFrom", {}).get(reference, {}).get("name") == name for one in model.env):
        yield "spec.env"
