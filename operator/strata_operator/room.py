"""What keeps a pod from a node now, as the scheduler would see it, and which node comes closest; pure.

Resources are counted in thousandths, as CPUs are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from strata.plan.units import format_bytes
from strata_operator.api.names import GPU_RESOURCE
from strata_operator.api.quantity import parse_thousandths

Object = Mapping[str, Any]

_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_ENDED = ("Succeeded", "Failed")
_OF_ANY_NODE = ("cpu", "memory", "pods")  # a node that does not tell of these has not told of itself yet
_NAMES = {"cpu": "CPUs", "pods": "pods", GPU_RESOURCE: "cards"}


@dataclass(frozen=True, slots=True)
class Lack:
    """Of one resource: how much a pod needs, and how much of all that a node has is free; None: nobody may see that."""

    resource: str
    needed: int
    free: int | None
    total: int

    @property
    def words(self) -> str:
        """For people; what is needed shows as more than what is free, however close they are."""
        name = _NAMES.get(self.resource, self.resource)
        needed = self._of(self.needed, round_up=True)
        if self.free is None:
            return f"{name}: {needed} needed, {self._of(self.total, round_down=True)} in all"
        return f"{name}: {needed} needed, {self._of(self.free, round_down=True)} of {self._of(self.total)} free"

    @property
    def share(self) -> float:
        """Of what is needed, that which is not there."""
        return 1 - max(0, self.total if self.free is None else self.free) / self.needed

    def _of(self, thousandths: int, **rounding: bool) -> str:
        thousandths = max(0, thousandths)
        is_bytes = self.resource in ("memory", "ephemeral-storage") or self.resource.startswith("hugepages-")
        return format_bytes(thousandths // 1000, **rounding) if is_bytes else f"{thousandths / 1000:.15g}"


def obstacle(node: Object, pods: Iterable[Object] | None, wanted: Object) -> str:
    """In few words; "" for nothing. ``pods``: those on the Node, whoever's they are; None: nobody may see them.
    ``wanted``: the pod's spec."""
    held = None if pods is None else used(pods)
    short = (f"is short of {lack.words}" for lack in lacks(node, held, wanted))
    return next(chain(_hindrances(node, wanted), short), "")


def closest(nodes: Iterable[tuple[Object, Mapping[str, int] | None]], wanted: Object) -> str:
    """The node that comes closest to what such a pod needs, and what it lacks; "" where one lacks nothing.

    ``nodes``: each with what its pods use; None: nobody may see that.
    """
    found = []
    for node, held in nodes:
        met, short = list(_hindrances(node, wanted)), lacks(node, held, wanted)
        if not (met or short):
            return ""
        words = "; ".join([*(f"it {one}" for one in met), *(lack.words for lack in short)])
        distance = (len(met) + len(short), len(met), max((lack.share for lack in short), default=0.0))
        found.append((distance, node["metadata"]["name"], words))
    if not found:
        return ""
    _, name, words = min(found)
    return f"node {name} comes closest: {words}"


def lacks(node: Object, held: Mapping[str, int] | None, wanted: Object) -> list[Lack]:
    """What the node has too little of, cards first. ``held``: what its pods use; None: nobody may see that."""
    there = (node.get("status") or {}).get("allocatable") or {}
    found = []
    for resource, needed in sorted(asked(wanted).items(), key=lambda one: (one[0] != GPU_RESOURCE, one[0])):
        if resource in _OF_ANY_NODE and resource not in there:
            continue
        total = parse_thousandths(str(there.get(resource, 0)), resource)
        free = None if held is None else total - held.get(resource, 0)
        if (total if free is None else free) < needed:
            found.append(Lack(resource, needed, free, total))
    return found


def used(pods: Iterable[Object]) -> Counter[str]:
    """By all of them that have not ended."""
    total: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in _ENDED:
            total.update(asked(pod["spec"]))
    return total


def asked(spec: Object) -> Counter[str]:
    """What a pod of that spec takes of a node, by resource."""
    total: Counter[str] = Counter(pods=1000)
    for container in spec.get("containers") or ():
        total.update(_requests(container))
    beside: Counter[str] = Counter()  # of sidecars, which go on once they have begun
    most: Counter[str] = Counter()  # of the others, one after the other
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            beside.update(_requests(container))
        else:
            most |= beside + _requests(container)
    total = (total + beside) | most
    total = Counter({**total, **_requests(spec)})  # of the pod as a whole, whatever its containers ask for
    total.update(_amounts(spec.get("overhead") or {}))
    return +total


def _requests(one: Object) -> Counter[str]:
    """Of a container, or of a pod as a whole."""
    resources = one.get("resources") or {}
    return Counter(_amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})}))


def _amounts(table: Object) -> dict[str, int]:
    return {resource: parse_thousandths(str(amount), resource) for resource, amount in table.items()}


def _hindrances(node: Object, wanted: Object) -> Iterator[str]:
    """Why the node is not open to such a pod, whatever it has."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    taints = [*(spec.get("taints") or ()), *([_CORDON] if spec.get("unschedulable") else ())]
    is_cordoned = False
    for taint in taints:
        is_heeded = taint["effect"] in ("NoSchedule", "NoExecute")
        if not is_heeded or any(tolerates(one, taint) for one in wanted.get("tolerations") or ()):
            continue
        if taint["key"] != _CORDON["key"]:
            yield f"has the taint {taint['key']}"
        elif not is_cordoned:  # the cluster adds the taint to the cordon
            is_cordoned = True
            yield "is cordoned"
    labels = metadata.get("labels") or {}
    missing = [
        f"{name}={value}" for name, value in (wanted.get("nodeSelector") or {}).items() if labels.get(name) != value
    ]
    if missing:
        yield f"lacks the label {', '.join(missing)}"
    affinity = (wanted.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required and not any(_matches(term, metadata["name"], labels) for term in required["nodeSelectorTerms"]):
        yield "lacks the labels that the pod's affinity requires"


def tolerates(toleration: Object, taint: Object) -> bool:
    """As Kubernetes has it."""
    is_meant = toleration.get("key") in (None, "", taint["key"])
    is_any = toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
    return is_meant and is_any and toleration.get("effect") in (None, "", taint["effect"])


def _matches(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    """A nodeSelectorTerm; an empty one matches nothing."""
    asked_for = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return bool(asked_for) and all(_is_met(one, {"metadata.name": name, **labels}.get(one["key"])) for one in asked_for)


def _is_met(asked_for: Object, value: str | None) -> bool:
    operator, values = asked_for["operator"], asked_for.get("values") or []
    if operator in ("NotIn", "DoesNotExist"):
        return value is None or (operator == "NotIn" and value not in values)
    if value is None or operator in ("In", "Exists"):
        return value is not None and (operator == "Exists" or value in values)
    try:
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    except ValueError:
        return False
