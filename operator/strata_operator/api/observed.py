"""What a reconcile sees of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strata_operator.api.child import Child
from strata_operator.api.node import StrataNode
from strata_operator.api.pod import Pod


@dataclass(frozen=True, slots=True)
class Observed:
    """All that the cluster shows of one model."""

    children: Mapping[str, Child]  # by kind
    pods: tuple[Pod, ...] = ()  # that serve or are to, in the order of their names
    preflight: tuple[Pod, ...] = ()  # of Jobs that bring image and weights to a node, in the order of their names
    used_gpus: Mapping[str, int] = field(default_factory=dict)  # by node, of all pods with our label
    nodes: tuple[StrataNode, ...] = ()  # all that agents tell of, in the order of their names
    applied_fields: Mapping[str, int] = field(default_factory=dict)  # by kind: hash of what our last apply left owned
