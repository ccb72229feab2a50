"""What a model wants of the nodes that run it, against what their StrataNodes hold; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strata_operator.api.conditions import NODE_TUNED, Condition, having
from strata_operator.api.model import StrataModel
from strata_operator.api.node import PAGE_BYTES, TUNED, Originals, PagesWish, StrataNode, Wish
from strata_operator.api.pod import Pod


@dataclass(frozen=True, slots=True)
class NodeAction:
    """One StrataNode to write: with this wish, or with none of this model's any more."""

    node: StrataNode
    wish: Wish | None


def wants_anything(model: StrataModel) -> bool:
    """Whether the spec has a wish for nodes at all."""
    return wish(model, replicas=1) != Wish(key(model.namespace, model.name))


def is_heeded(model: StrataModel, nodes: Iterable[StrataNode]) -> bool:
    """Whether an agent acts on what the spec wishes for. One that is suspended gives back what it has set."""
    return wants_anything(model) and any(not node.spec.suspend for node in nodes)


def wish(model: StrataModel, *, replicas: int) -> Wish:
    """Of a node that runs so many replicas."""
    power, hardware = model.power, model.hardware
    pages: tuple[PagesWish, ...] = ()
    if hardware.hugepages is not None:
        pages = (PagesWish(hardware.hugepages, replicas * hardware.hugepages_bytes // PAGE_BYTES[hardware.hugepages]),)
    return Wish(
        model=key(model.namespace, model.name),
        power_limit_watts=power.limit_watts,
        sm_clock_max_mhz=power.max_sm_clock_mhz,
        memory_clock_max_mhz=power.max_memory_clock_mhz,
        max_core_temperature_c=power.max_core_celsius,
        max_memory_temperature_c=power.max_memory_celsius,
        hugepages=pages,
    )


def key(namespace: str, name: str) -> str:
    """How a StrataNode names a model."""
    return f"{namespace}/{name}"


def desired(
    model: StrataModel, pods: Iterable[Pod], fitting: Sequence[str], nodes: Sequence[StrataNode]
) -> dict[str, Wish]:
    """Wishes by node: where a pod is, even one that is on its way out.

    While pods have no node yet, what is wanted of a node already stays wanted: the next pod of a roll-out is likely to
    come there. Huge pages have to be there before a pod can be, so they are wanted of the nodes that fit best, too.
    """
    if not wants_anything(model):
        return {}
    there = Counter(pod.node for pod in pods if pod.node is not None and not pod.failed)
    ahead = [node.name for node in nodes if held_wish(key(model.namespace, model.name), node) is not None]
    if model.hardware.hugepages is not None:
        places = fitting if model.hardware.accelerator == "nvidia" else _hosts(model, nodes)
        ahead += [name for name in places if name not in ahead]
    missing = model.wanted_replicas - sum(there.values())
    for node in [name for name in ahead if name not in there][: max(0, missing)]:
        there[node] = 1
    return {node: wish(model, replicas=count) for node, count in sorted(there.items()) if node is not None}


def _hosts(model: StrataModel, nodes: Iterable[StrataNode]) -> list[str]:
    """Nodes whose memory holds the pages and what else a replica takes: those with the fewest cards first."""
    wanted = model.hardware.memory_bytes + model.hardware.hugepages_bytes
    large = [node for node in nodes if node.status.host is not None and node.status.host.memory_bytes >= wanted]
    return [node.name for node in sorted(large, key=lambda node: len(node.status.gpus))]


def actions(model_key: str, wanted: Mapping[str, Wish], nodes: Iterable[StrataNode]) -> tuple[NodeAction, ...]:
    """What to write: only StrataNodes that hold something else of this model."""
    made = []
    for node in nodes:
        held = held_wish(model_key, node)
        if held != wanted.get(node.name):
            made.append(NodeAction(node, wanted.get(node.name)))
    return tuple(made)


def held_wish(model_key: str, node: StrataNode) -> Wish | None:
    """The model's wish that the StrataNode holds."""
    return next((one for one in node.spec.tuning.models if one.model == model_key), None)


def unsettled(model_key: str, names: Iterable[str], nodes: Iterable[StrataNode]) -> tuple[str, ...]:
    """Of those nodes, the ones whose agent has not undone what the model wished for. A node without agent is none."""
    wanted = set(names)
    return tuple(node.name for node in nodes if node.name in wanted and not _has_undone(node, model_key))


def _has_undone(node: StrataNode, model_key: str) -> bool:
    """Another model's wish that cannot be met is no reason to wait."""
    if not _is_seen(node):
        return False
    if having(node.conditions, TUNED, "True"):
        return True
    if node.spec.suspend or not node.spec.tuning.models:
        return node.status.originals == Originals()
    return all(setting.model != model_key for gpu in node.status.enforced.gpus for setting in gpu.settings)


def _is_seen(node: StrataNode) -> bool:
    return node.status.observed_generation >= node.generation


def _is_settled(node: StrataNode) -> bool:
    return _is_seen(node) and bool(having(node.conditions, TUNED, "True"))


def verdict(model: StrataModel, wanted: Mapping[str, Wish], nodes: Iterable[StrataNode]) -> Condition:
    """The condition NodeTuned."""
    if not wants_anything(model):
        return Condition(NODE_TUNED, True, "NothingWanted", "the spec wants nothing of the nodes")
    if not wanted:
        return Condition(NODE_TUNED, None, "NoNode", "no pod has a node yet")
    there = {node.name: node for node in nodes}
    absent = [name for name in wanted if name not in there]
    if absent:
        words = f"no node agent tells of {', '.join(absent)}, so nothing is set there; install strata-agent"
        return Condition(NODE_TUNED, False, "NoAgent", words)
    told = []
    for name in wanted:
        refused = having(there[name].conditions, TUNED, "False")
        if refused and _is_seen(there[name]):
            return Condition(NODE_TUNED, False, refused[0]["reason"], f"{name}: {refused[0]['message']}")
        if not _is_settled(there[name]):
            return Condition(NODE_TUNED, None, "Applying", f"the agent of {name} has not applied it yet")
        told += _lower_wishes(wanted[name].model, there[name])
    return Condition(NODE_TUNED, True, "Tuned", "; ".join([f"in force on {', '.join(wanted)}", *told]))


def _lower_wishes(model_key: str, node: StrataNode) -> list[str]:
    """Settings of which another model's lower wish is in force."""
    found = {
        (setting.name, setting.model, setting.requested)
        for gpu in node.status.enforced.gpus
        for setting in gpu.settings
        if setting.model != model_key
    }
    return [f"on {node.name} {name} is {value}, the lower wish of {model}" for name, model, value in sorted(found)]
