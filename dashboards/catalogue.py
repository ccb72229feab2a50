"""All metrics by name, as the exporters have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry

from dashboards import exporters

EXPORTERS = {"engine": exporters.engine, "operator": exporters.operator, "agent": exporters.agent}
# Labels whose values are not of a list that the code has.
OPEN_LABELS = {"node", "uuid", "product", "xid", "numa_node", "layer", "namespace", "model", "verb", "status"}
OPEN_LABELS |= {"version", "served_name", "dtype", "device"}


@dataclass(frozen=True, slots=True)
class Metric:
    """``labels``: with the values that the code knows, none where there are any; without a histogram's ``le``."""

    name: str  # as in a query; a histogram's without its suffix
    type: str
    labels: Mapping[str, tuple[str, ...]]
    help: str

    @property
    def series(self) -> dict[str, frozenset[str]]:
        """Names that a query may have, each with its labels."""
        plain = frozenset(self.labels)
        if self.type != "histogram":
            return {self.name: plain}
        parts = {f"{self.name}_{suffix}": plain for suffix in ("sum", "count")}
        return {**parts, f"{self.name}_bucket": plain | {"le"}}


@cache
def metrics() -> dict[str, tuple[Metric, ...]]:
    """Of each exporter, in its own order."""
    return {name: tuple(_of(make())) for name, make in EXPORTERS.items()}


def _of(registry: CollectorRegistry) -> list[Metric]:
    found = []
    for family in registry.collect():
        assert family.samples, f"{family.name} has no series, so that nobody learns its labels"
        values: dict[str, set[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
        values.pop("le", None)
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        kind = "gauge" if family.type == "info" else family.type
        labels = {label: () if label in OPEN_LABELS else tuple(sorted(some)) for label, some in values.items()}
        found.append(Metric(family.name + suffix, kind, labels, family.documentation))
    return found
