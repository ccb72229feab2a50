"""A strategic merge patch, as ``kubectl patch --type=strategic`` applies one to a pod template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata_operator.api.errors import InvalidSpecError

# Lists of tables whose elements are told apart by a key, as the Kubernetes API declares them. Any other list is
# replaced as a whole.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}


def merge(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    """``base`` with ``patch`` over it: null removes a field, ``$patch: delete`` an element of a keyed list, and
    ``$patch: replace`` puts a table in another's place. ``path`` names the patch in errors.

    Raises InvalidSpecError for another directive, and for an element of a keyed list that has no key.
    """
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    made = dict(base)
    for key, value in patch.items():
        here = f"{path}.{key}"
        if key.startswith("$"):
            raise InvalidSpecError(f"{here} is not known; directives are $patch: replace and, in a list, delete")
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping):
            there = made.get(key)
            made[key] = merge(there if isinstance(there, Mapping) else {}, value, here)
        elif isinstance(value, list) and key in _KEYS:
            made[key] = _merge_list(made.get(key) or [], value, _KEYS[key], here)
        else:
            made[key] = value
    return made


def _merge_list(
    base: Sequence[Mapping[str, Any]], patch: Sequence[Any], key: str, path: str
) -> list[Mapping[str, Any]]:
    made = list(base)
    for number, element in enumerate(patch):
        here = f"{path}[{number}]"
        if not isinstance(element, Mapping) or key not in element:
            raise InvalidSpecError(f"{here} has no {key}, which says what it is merged with; give it")
        at = next((n for n, one in enumerate(made) if one.get(key) == element[key]), None)
        if element.get("$patch") == "delete":
            if at is not None:
                del made[at]
        elif at is None:
            made.append(merge({}, element, here))
        else:
            made[at] = merge(made[at], element, here)
    return made
