"""What keeps a pod from a node now, as the scheduler would see it; pure.

Asked before a pod leaves another node for this one. Of CPU and memory nothing is asked: the fit has weighed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strata_operator.api.names import GPU_RESOURCE
from strata_operator.api.pod import gpus_of
from strata_operator.api.quantity import parse_quantity

Object = Mapping[str, Any]

_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def obstacle(node: Object, pods: Iterable[Object], wanted: Object) -> str:
    """In few words; "" for nothing. ``pods``: those on the Node, whoever's they are. ``wanted``: the pod's spec."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    taints = [*(spec.get("taints") or ()), *([_CORDON] if spec.get("unschedulable") else ())]
    for taint in taints:
        is_heeded = taint["effect"] in ("NoSchedule", "NoExecute")
        if is_heeded and not any(tolerates(one, taint) for one in wanted.get("tolerations") or ()):
            return "is cordoned" if taint["key"] == _CORDON["key"] else f"has the taint {taint['key']}"
    labels = metadata.get("labels") or {}
    lacks = [
        f"{name}={value}" for name, value in (wanted.get("nodeSelector") or {}).items() if labels.get(name) != value
    ]
    if lacks:
        return f"lacks the label {', '.join(lacks)}"
    affinity = (wanted.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required and not any(_matches(term, metadata["name"], labels) for term in required["nodeSelectorTerms"]):
        return "lacks the labels that the pod's affinity requires"
    there = parse_quantity(str((status.get("allocatable") or {}).get(GPU_RESOURCE, 0)), GPU_RESOURCE)
    ended = ("Succeeded", "Failed")
    used = sum(gpus_of(pod["spec"]) for pod in pods if (pod.get("status") or {}).get("phase") not in ended)
    if there - used < gpus_of(wanted):
        return f"has {max(0, there - used)} of {there} cards free"
    return ""


def tolerates(toleration: Object, taint: Object) -> bool:
    """As Kubernetes has it."""
    is_meant = toleration.get("key") in (None, "", taint["key"])
    is_any = toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
    return is_meant and is_any and toleration.get("effect") in (None, "", taint["effect"])


def _matches(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    """A nodeSelectorTerm; an empty one matches nothing."""
    asked = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return bool(asked) and all(_is_met(one, {"metadata.name": name, **labels}.get(one["key"])) for one in asked)


def _is_met(asked: Object, value: str | None) -> bool:
    operator, values = asked["operator"], asked.get("values") or []
    if operator in ("NotIn", "DoesNotExist"):
        return value is None or (operator == "NotIn" and value not in values)
    if value is None or operator in ("In", "Exists"):
        return value is not None and (operator == "Exists" or value in values)
    try:
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    except ValueError:
        return False
